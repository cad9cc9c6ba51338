"""Which waiting requests form the next batch, how long one waits, and which are refused. Pure.

A batch forms while replicas are busy: the first request that finds one idle goes at once, and what
comes in the meantime goes together. There is no waiting for company.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from flatout.schema.serve_model import ServedModel
from flatout.schema.serve_protocol import AnyInput, FileInput, TensorInput, TextInput

# How much of the difference between expected and measured is believed at a time.
_BELIEF = 0.1
# uvloop takes half a millisecond for no time at all: the question would be asked again at once, and
# again, by a core that replicas could use. A batch that is shorter ends by itself before.
_SHORTEST_TIMER_S = 0.001
# Of the inputs in a batch, once they are read. Of small files that decompress to many pixels, a
# batch of the best size for usual ones would not fit into memory, nor into a message.
MOST_BATCH_BYTES = 256 << 20
# Of a character in UTF-8.
_CHARACTER_BYTES = 4


class BatchTimes:
    """How long batches take: measured in the warm-up, corrected by those that were answered since.

    Args:
        model: with what was measured in its warm-up.
        latency_s: target for a batch; None: as many samples as the model takes.
    """

    def __init__(self, model: ServedModel, latency_s: float | None) -> None:
        self._points = sorted(model.batch_s.items())
        self._ratio = 1.0
        self.limit = self._largest(max(1, model.max_samples), latency_s)

    def expected_s(self, num_samples: int) -> float | None:
        """Seconds of a batch, seen from the server; None where nothing was measured."""
        planned_s = self._planned_s(num_samples)
        return None if planned_s is None else planned_s * self._ratio

    def observe(self, num_samples: int, seconds: float) -> None:
        """Takes in how long a batch has taken."""
        planned_s = self._planned_s(num_samples)
        if planned_s is None or planned_s <= 0:
            self._points = [(num_samples, seconds)]
            return
        self._ratio += _BELIEF * (seconds / planned_s - self._ratio)

    def samples_per_s(self) -> float | None:
        """What a replica answers under full load; None where nothing was measured."""
        seconds = self.expected_s(self.limit)
        return self.limit / seconds if seconds else None

    def _planned_s(self, num_samples: int) -> float | None:
        """Between two measured sizes on the line between them; beyond the last in proportion."""
        if not self._points:
            return None
        below = self._points[0]
        if num_samples <= below[0]:
            return below[1]
        for point in self._points[1:]:
            if num_samples <= point[0]:
                share = (num_samples - below[0]) / (point[0] - below[0])
                return below[1] + share * (point[1] - below[1])
            below = point
        return below[1] * num_samples / below[0]

    def _largest(self, most: int, latency_s: float | None) -> int:
        """The most samples of a batch within the target: not corrected by what is measured later,
        since a slower machine is not helped by smaller batches.
        """
        if latency_s is None or not self._points:
            return most
        low, high = 1, most
        while low < high:
            middle = (low + high + 1) // 2
            if (self._planned_s(middle) or 0.0) <= latency_s:
                low = middle
            else:
                high = middle - 1
        return low


def input_bytes(given: AnyInput) -> int:
    """About what an input takes once it is decoded, and at least what it takes in a message."""
    if isinstance(given, TensorInput):
        return sum(len(tensor.data) for tensor in given.tensors)
    if isinstance(given, FileInput):
        return max(len(given.data), given.content_bytes)
    if isinstance(given, TextInput):
        return len(given.text) * _CHARACTER_BYTES
    # A value from a client is encoded already.
    value = given.value
    encoded = value if isinstance(value, msgspec.Raw) else msgspec.msgpack.encode(value)
    return memoryview(encoded).nbytes


def batch_length(
    waiting: Iterable[tuple[int, int, bool]], limit: int, most_bytes: int = MOST_BATCH_BYTES
) -> int:
    """How many requests from the front of the queue form the next batch.

    Args:
        waiting: samples and bytes of each, and whether it must be computed alone.
        limit, most_bytes: of a batch; a request that has more is computed by itself.
    """
    length = total = total_bytes = 0
    for num_samples, num_bytes, is_alone in waiting:
        if is_alone:
            return length or 1
        total += num_samples
        total_bytes += num_bytes
        if length and (total > limit or total_bytes > most_bytes):
            break
        length += 1
    return length


def second_due_in_s(
    waiting_samples: int, limit: int, running_s: float, expected_s: float | None
) -> float:
    """When a second batch is sent to a replica that computes one; 0: now.

    It must be there when the first one ends, but what is sent later has more samples: so when it is
    full, or when the first one is half done.
    """
    if waiting_samples >= limit or expected_s is None:
        return 0.0
    left_s = expected_s / 2 - running_s
    return max(left_s, _SHORTEST_TIMER_S) if left_s > 0 else 0.0


def wait_s(ahead_samples: int, num_replicas: int, times: BatchTimes | None) -> float | None:
    """How long what is ahead takes all replicas; None where nothing was measured."""
    rate = times.samples_per_s() if times is not None else None
    if rate is None or num_replicas == 0:
        return None
    return ahead_samples / (rate * num_replicas)


def late_by_s(
    waiting_s: float | None, own_s: float | None, deadline_s: float
) -> float | None:  # fmt: skip
    """By how much a request would miss its deadline; None: it is expected to meet it.

    A request with nothing ahead is always computed: times that were too long by chance would
    otherwise refuse everything, and nothing would correct them.
    """
    if not waiting_s:
        return None
    late_s = waiting_s + (own_s or 0.0) - deadline_s
    return late_s if late_s > 0 else None
