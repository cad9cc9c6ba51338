"""One record per request, as the generator's process writes them, and what they sum up to.

Percentiles are exact: they are read from the sorted latencies, not from a histogram.
"""

from __future__ import annotations

import math
import struct
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

import msgspec

from flatout.schema.loadtest import (
    Bucket,
    ErrorKind,
    LatencySummary,
    LoadEnded,
    LoadError,
    LoadSecond,
    LoadStep,
)

# due_s (from the end of the warm-up), latency_s (from then on), lag_s (of the generator), answer's
# bytes, status, kind, number of the input.
_RECORD = struct.Struct("<ddfIHBxI")
KINDS: tuple[ErrorKind | None, ...] = (
    None, "status", "timeout", "connection", "wrong answer", "unsent"
)  # fmt: skip
ANSWERED, STATUS, TIMEOUT, CONNECTION, WRONG, UNSENT = range(len(KINDS))
# Latencies of a bucket differ by at most so much.
_BUCKET_RATIO = 1.05


class LoadRecord(msgspec.Struct, frozen=True, gc=False):
    """One request. due_s: when it was sent, or was to be sent by the schedule."""

    due_s: float
    latency_s: float
    lag_s: float
    num_bytes: int
    status: int
    kind: int
    input: int

    @property
    def done_s(self) -> float:
        """When its answer came, or it was given up."""
        return self.due_s + self.latency_s


def pack_record(record: LoadRecord) -> bytes:
    """The bytes of a record."""
    return _RECORD.pack(
        record.due_s, record.latency_s, record.lag_s, min(record.num_bytes, 2**32 - 1),
        record.status, record.kind, record.input,
    )  # fmt: skip


def unpack_records(content: bytes) -> list[LoadRecord]:
    """The records of a file; the last one may be cut off."""
    whole = len(content) - len(content) % _RECORD.size
    return [LoadRecord(*values) for values in _RECORD.iter_unpack(content[:whole])]


def quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of all values does not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def summarized(records: Sequence[LoadRecord], ended: LoadEnded, sizes: Sequence[int]) -> LoadStep:
    """Everything that follows from the records of one load.

    Args:
        records: of all requests that were due in the measured time.
        ended: of the generator.
        sizes: bytes of each input.
    """
    good = [record for record in records if record.kind == ANSWERED]
    lags = sorted(record.lag_s for record in records)
    # The last answers may come after the end of the schedule.
    span_s = max([ended.measured_s, *(record.done_s for record in good)])
    return LoadStep(
        measured_s=ended.measured_s,
        num_requests=len(records),
        num_answered=len(good),
        answers_per_s=len(good) / span_s if span_s else 0.0,
        latency=_latency(sorted(record.latency_s for record in good)),
        errors=tuple(_errors(records, ended.examples)),
        sent_bytes=sum(sizes[record.input] for record in records if record.kind != UNSENT),
        received_bytes=sum(record.num_bytes for record in records),
        generator_cpus=ended.cpu_s / ended.wall_s if ended.wall_s else None,
        lag_s=quantile(lags, 0.99) if lags else None,
        seconds=tuple(_seconds(records, ended.measured_s)),
        buckets=tuple(_buckets(record.latency_s for record in good)),
    )


def _latency(ordered: Sequence[float]) -> LatencySummary | None:
    if not ordered:
        return None
    p50_s, p90_s, p99_s, p999_s = (quantile(ordered, one) for one in (0.5, 0.9, 0.99, 0.999))
    return LatencySummary(
        mean_s=math.fsum(ordered) / len(ordered),
        p50_s=p50_s, p90_s=p90_s, p99_s=p99_s, p999_s=p999_s, max_s=ordered[-1],
    )  # fmt: skip


def example_name(kind: int, status: int) -> str:
    """The name of an example in `LoadEnded`."""
    return f"{KINDS[kind]} {status}"


def _errors(records: Sequence[LoadRecord], examples: dict[str, str]) -> Iterator[LoadError]:
    """The most frequent first."""
    counts = Counter((one.kind, one.status) for one in records if one.kind != ANSWERED)
    for (number, status), count in counts.most_common():
        kind = KINDS[number]
        assert kind is not None
        yield LoadError(
            kind=kind, count=count, status=status or None,
            example=examples.get(example_name(number, status)),
        )  # fmt: skip


def _seconds(records: Sequence[LoadRecord], measured_s: float) -> Iterator[LoadSecond]:
    """Whole seconds; a rest of less than half a second is left out."""
    answered, errors = Counter[int](), Counter[int]()
    latencies = defaultdict[int, list[float]](list)
    for record in records:
        if record.kind == ANSWERED:
            answered[int(record.done_s)] += 1
        else:
            errors[int(record.done_s)] += 1
        if record.kind in (ANSWERED, TIMEOUT, UNSENT):
            latencies[int(record.due_s)].append(record.latency_s)
    for second in range(max(1, round(measured_s)) if records else 0):
        ordered = sorted(latencies[second])
        p50_s, p90_s, p99_s = (
            quantile(ordered, one) if ordered else None for one in (0.5, 0.9, 0.99)
        )
        yield LoadSecond(
            at_s=float(second), num_answered=answered[second], num_errors=errors[second],
            p50_s=p50_s, p90_s=p90_s, p99_s=p99_s,
        )  # fmt: skip


def _buckets(latencies: Iterator[float]) -> Iterator[Bucket]:
    places = Counter(math.ceil(math.log(max(one, 1e-6), _BUCKET_RATIO)) for one in latencies)
    for place in sorted(places):
        yield Bucket(_BUCKET_RATIO**place, places[place])
