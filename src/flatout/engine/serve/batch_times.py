"""How long batches take, by size and by threads, and which of these is used. No framework."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from functools import partial

import msgspec

from flatout.engine.serve.answering import Answers
from flatout.engine.serve.replica_model import ReplicaModel
from flatout.schema.serve_protocol import AnyInput, BatchItem, ItemRefused, Measured
from flatout.schema.units import counted_text
from flatout.system.clock import elapsed_s, thread_s

_MOST_SAMPLES = 256
# A server is ready soon: so long is one thing measured, and the larger sizes of a slow model are
# left out.
_LIMIT_S = 0.05
_MOST_TIMES = 20
_ALL_SIZES_S = 1.0
# What takes longer is not repeated: its first call is not far from the others.
SLOW_S = 0.5
# A larger batch that is not faster by more only makes its requests wait.
_WORTH = 0.03
# More threads that are not faster by more are left to others.
_WORTH_THREADS = 0.1


def clock_for(device: str, num_threads: int | None) -> Callable[[], float]:
    """What times a batch: the work of the thread, where one thread does all of it.

    A model that is swapped in is measured while others compute. A small batch may fit between two
    of their turns; a large one never does, and would seem less efficient than it is.
    """
    # Windows counts the time of threads in steps of 16 ms.
    is_exact = device == "cpu" and num_threads == 1 and sys.platform != "win32"
    return thread_s if is_exact else elapsed_s


def seconds_of(
    call: Callable[[], object],
    first_s: float | None = None,
    clock: Callable[[], float] = elapsed_s,
) -> float:
    """The shortest time of a call, after a first one; of one that is slow, the first one's.

    Args:
        call: what is measured. Other programs only add to its time.
        first_s: how long its first call has taken, if there was one.
        clock: of `clock_for`.
    """
    if first_s is None:
        began_s = clock()
        call()
        first_s = clock() - began_s
    times_s: list[float] = []
    until_s = elapsed_s() + _LIMIT_S
    while first_s < SLOW_S and len(times_s) < _MOST_TIMES and elapsed_s() < until_s:
        began_s = clock()
        call()
        times_s.append(clock() - began_s)
    return min(times_s, default=first_s)


def measured_sizes(
    model: ReplicaModel,
    example: AnyInput,
    latency_s: float,
    max_samples: int | None,
    clock: Callable[[], float],
) -> Generator[str, None, dict[int, float]]:
    """Seconds of a batch for 1, 2, 4 and more samples, until one takes longer than latency_s.

    Yields what is measured. Sizes on which the model fails are left out; if it fails on one sample,
    the model's findings say why.
    """
    batch_s: dict[int, float] = {}
    spent_s, size = 0.0, 1
    most = min(max_samples or _MOST_SAMPLES, _MOST_SAMPLES)
    while size <= most:
        # A replica may answer requests meanwhile.
        yield f"measuring batches of {counted_text(size, 'sample')}"
        began_s = elapsed_s()
        items = [BatchItem(id=number, input=example) for number in range(size)]
        answers = Answers(model, size)
        first_s = clock()
        for answer in answers.of(items):
            if isinstance(answer, ItemRefused):
                if size == 1:
                    warning = msgspec.structs.replace(answer.finding, severity="warning")
                    model.findings.append(warning)
                return batch_s
        first_s = clock() - first_s
        batch_s[size] = seconds_of(partial(answers.of, items), first_s, clock)
        is_late = batch_s[size] > latency_s and max_samples is None
        spent_s += elapsed_s() - began_s
        if is_late or spent_s > _ALL_SIZES_S:
            break
        size *= 2
    return batch_s


def measured_again(
    model: ReplicaModel, batch_s: Mapping[int, float], latency_s: float
) -> Iterator[str | Measured]:  # fmt: skip
    """Measures batches size by size, so that requests can be answered in between; then yields the
    result.

    Args:
        model: after its warm-up.
        batch_s: as measured in it.
        latency_s: target for a batch.
    """
    found = dict(batch_s)
    num_findings = len(model.findings)
    # What is slow was measured well enough, and requests would wait for each size.
    if model.measure_batches is not None and batch_s.get(1, SLOW_S) < SLOW_S:
        again = yield from model.measure_batches()
        # Other programs only add to a time.
        found |= {size: min(one, batch_s.get(size, one)) for size, one in again.items()}
    yield Measured(
        batch_s=found,
        max_samples=best_size(found, latency_s),
        finding=next(iter(model.findings[num_findings:]), None),
    )


def best_size(batch_s: Mapping[int, float], latency_s: float) -> int:
    """The smallest size that is as fast as any within the latency; 1 where none is within."""
    rates = {size: size / seconds for size, seconds in batch_s.items() if seconds <= latency_s}
    if not rates:
        return 1
    best = max(rates.values())
    return min(size for size, rate in rates.items() if rate >= best * (1 - _WORTH))


def thread_counts(most: int) -> list[int]:
    """Numbers of threads to try: powers of two, and all of them."""
    return [2**power for power in range(most.bit_length()) if 2**power < most] + [most]


def best_threads(times_s: Mapping[int, float], enough_s: float | None) -> int:
    """The fewest threads that are fast enough, since what they leave is of use to others.

    Args:
        times_s: seconds of a batch by the number of threads.
        enough_s: how fast that is, where any number reaches it; None: as fast as the fastest.
    """
    fastest_s = min(times_s.values())
    limit_s = max(fastest_s * (1 + _WORTH_THREADS), enough_s or 0.0)
    return min(count for count, seconds in times_s.items() if seconds <= limit_s)
