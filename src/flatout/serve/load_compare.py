"""Two load tests: what is faster, and how sure that is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from flatout.bench import statistics
from flatout.errors import FlatoutError, UsageError
from flatout.schema.loadtest import (
    LOADTEST_VERSION,
    LoadChange,
    LoadComparison,
    LoadFile,
    LoadSecond,
    LoadStep,
)
from flatout.schema.tuning import Interval
from flatout.schema.units import bytes_text, counted_text, seconds_text
from flatout.system import atomic_files

# A long test with many loads has 2 MiB.
_MOST_BYTES = 64 * 2**20
# Of a rate, and of a time.
_UNITS: dict[bool, Literal["answers/s", "s"]] = {True: "answers/s", False: "s"}


class _FileVersion(msgspec.Struct, frozen=True):
    loadtest_version: int | None = None


def read_file(path: Path) -> LoadFile:
    """Reads the result of a load test.

    Raises:
        UsageError: loadtest-file-unreadable.
    """
    try:
        with atomic_files.mapped_os_errors(path), atomic_files.open_file(path) as file:
            content = file.read(_MOST_BYTES + 1)
    except FileNotFoundError as error:
        raise _unreadable(path, "it does not exist") from error
    except FlatoutError as error:
        raise _unreadable(path, error.because or error.problem) from error
    if len(content) > _MOST_BYTES:
        raise _unreadable(path, f"it is larger than {bytes_text(_MOST_BYTES)}")
    try:
        version = msgspec.json.decode(content, type=_FileVersion).loadtest_version
        if version is None:
            raise _unreadable(path, "it has no `loadtest_version`")
        if version > LOADTEST_VERSION:
            raise _unreadable(
                path, f"it was written by a newer flatout (its format is version {version})"
            )
        return msgspec.json.decode(content, type=LoadFile)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _unreadable(path, str(error)) from error


def _unreadable(path: Path, because: str) -> UsageError:
    return UsageError(
        "loadtest-file-unreadable",
        f"{path} is not a readable result of a load test.",
        because=because,
        fix="measure again: flatout loadtest URL --output FILE.json",
    )


def compare(first: LoadFile, second: LoadFile, names: tuple[str, str]) -> LoadComparison:
    """The second test against the first.

    Raises:
        UsageError: loadtest-nothing-to-compare.
    """
    steps = (first.reported, second.reported)
    for step, name in zip(steps, names, strict=True):
        if step is None or not step.num_answered:
            raise UsageError(
                "loadtest-nothing-to-compare",
                f"{name} contains no answered request.",
                fix="measure again: flatout loadtest URL --output FILE.json",
            )
    assert steps[0] is not None and steps[1] is not None
    changes = [*_highest_loads(first, second), *_measured_changes(steps[0], steps[1])]
    return LoadComparison(
        first=names[0],
        second=names[1],
        changes=tuple(changes),
        differing=tuple(_differing(first, second)),
        warnings=tuple(_warnings(first, second, names)),
    )


def _highest_loads(first: LoadFile, second: LoadFile) -> Iterator[LoadChange]:
    """The highest loads that held the latency, where both tests looked for these."""
    if first.best is None or second.best is None:
        return
    limits = {file.settings.until_latency_s for file in (first, second)}
    if len(limits) > 1 or None in limits:
        return
    one, other = first.steps[first.best], second.steps[second.best]
    if one.rate_per_s and other.rate_per_s:
        yield LoadChange(
            name="highest rate in time", unit="requests/s", first=one.rate_per_s,
            second=other.rate_per_s, why="each was found once",
        )  # fmt: skip
    elif one.users and other.users:
        yield LoadChange(
            name="most users in time", unit="users", first=float(one.users),
            second=float(other.users), why="each was found once",
        )  # fmt: skip


def _measured_changes(first: LoadStep, second: LoadStep) -> Iterator[LoadChange]:
    assert first.latency is not None and second.latency is not None
    found = [
        _change("throughput", _rates(first), _rates(second), is_rate=True),
        *(
            _change(name, _latencies(first, name), _latencies(second, name), is_rate=False)
            for name in ("p50", "p90", "p99")
        ),
    ]
    values = [
        (first.answers_per_s, second.answers_per_s),
        (first.latency.p50_s, second.latency.p50_s),
        (first.latency.p90_s, second.latency.p90_s),
        (first.latency.p99_s, second.latency.p99_s),
    ]
    counted = iter(statistics.discoveries([p for change, p in found if change.ratio is not None]))
    for (change, _), (before, after) in zip(found, values, strict=True):
        is_discovered = change.ratio is not None and next(counted)
        yield _judged(msgspec.structs.replace(change, first=before, second=after), is_discovered)


def _rates(step: LoadStep) -> list[float]:
    # A second without an answer is the slowest of all; its logarithm must exist.
    return [float(one.num_answered or 0.5) for one in step.seconds]


def _latencies(step: LoadStep, name: str) -> list[float]:
    def value(second: LoadSecond) -> float | None:
        return {"p50": second.p50_s, "p90": second.p90_s, "p99": second.p99_s}[name]

    return [found for one in step.seconds if (found := value(one))]


def _change(
    name: str, before: list[float], after: list[float], *, is_rate: bool
) -> tuple[LoadChange, float]:
    """Ratio of the medians of the seconds, above 1 is better; and its p-value."""
    change = LoadChange(name=name, unit=_UNITS[is_rate], first=0.0, second=0.0)
    least = min(len(before), len(after))
    if least < statistics.LEAST_SAMPLES:
        why = f"{counted_text(least, 'second')}; at least {statistics.LEAST_SAMPLES} are needed"
        return msgspec.structs.replace(change, why=why), 1.0
    pair = (before, after) if is_rate else (after, before)
    estimate = statistics.ratio_of_medians(*pair)
    return msgspec.structs.replace(change, ratio=estimate.ratio), estimate.p_value


def _judged(change: LoadChange, is_discovered: bool) -> LoadChange:
    if change.ratio is None or not _is_beyond(change.ratio):
        return change
    if not is_discovered:
        return msgspec.structs.replace(change, why="chance explains it")
    verdict = "faster" if change.ratio.middle > 1 else "slower"
    return msgspec.structs.replace(change, verdict=verdict)


def _is_beyond(ratio: Interval) -> bool:
    most = 1 + statistics.LEAST_DIFFERENCE
    return ratio.low > most or ratio.high < 1 / most


def _differing(first: LoadFile, second: LoadFile) -> Iterator[tuple[str, str, str]]:
    pairs = [("machine", first.machine, second.machine), ("flatout", first.flatout, second.flatout)]
    before, after = (msgspec.structs.asdict(file.settings) for file in (first, second))
    pairs += [(name, _text(name, before[name]), _text(name, after[name])) for name in before]
    yield from (pair for pair in pairs if pair[1] != pair[2])


def _text(name: str, value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float) and name.endswith("_s") and not name.endswith("per_s"):
        return seconds_text(value)
    return str(value)


def _warnings(first: LoadFile, second: LoadFile, names: tuple[str, str]) -> Iterator[str]:
    for file, name in zip((first, second), names, strict=True):
        yield from (f"{name}: {text}" for text in file.warnings)
        step = file.reported
        if step is not None and step.num_errors:
            yield (
                f"{name}: {step.num_errors:,} of {counted_text(step.num_requests, 'request')} had"
                " no good answer"
            )
        if file.is_interrupted:
            yield f"{name}: it was interrupted"
    loads = {(file.settings.users, file.settings.rate_per_s) for file in (first, second)}
    if len(loads) > 1 and first.settings.until_latency_s is None:
        yield "the loads differ: compare tests with the same --users or --rate"
