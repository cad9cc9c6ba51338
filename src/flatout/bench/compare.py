"""Bench files against the first of them: ratios, verdicts, and what the differences come from."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

import msgspec

from flatout.bench import differences, groups, statistics
from flatout.bench.read_files import read_files
from flatout.errors import UsageError
from flatout.schema.bench import BenchFile, BenchRow
from flatout.schema.bench_comparison import (
    BenchComparison,
    ComparedFile,
    ComparedRow,
    ComparedValue,
    ComparisonVerdict,
    LoadedBench,
    RowChange,
    StepPart,
)
from flatout.schema.machine import Machine
from flatout.schema.tuning import Interval
from flatout.schema.units import counted_text

# Units of rows for which "faster" is the word.
_SPEEDS = {"flop/s", "op/s", "B/s", "s", "samples/s", "tokens/s", "file/s"}
_NUM_SHOWN = 3
# Conditions that are measured values, and so differ each time.
_MEASURED = {"memory_bytes", "ladder"}


class _Side(msgspec.Struct, frozen=True):
    """What counts of a file for its intervals."""

    load_share: float
    num_processes: int

    @classmethod
    def of(cls, file: BenchFile) -> _Side:
        """Read from its state and settings."""
        return cls(load_share=differences.load_share(file), num_processes=file.num_processes)


def load(paths: Sequence[Path]) -> tuple[LoadedBench, ...]:
    """The files to compare; see read_files for the errors."""
    return read_files(paths)


def compare(files: Sequence[LoadedBench]) -> BenchComparison:
    """Compares files with the first; of a single file, there are values without ratios.

    Raises:
        UsageError: bench-nothing-in-common.
    """
    tables = [{row.id: row for row in one.file.rows} for one in files]
    ids = list(dict.fromkeys(id for table in tables for id in table))
    common = [id for id in ids if sum(id in table for table in tables) > 1]
    if len(files) > 1 and not common:
        raise _nothing_in_common(files)
    shown = common if len(files) > 1 else ids
    rows = _with_verdicts([_row(id, files, tables) for id in shown])
    about = tuple(_about(one) for one in files)
    differing = differences.differing(files)
    warnings = differences.warnings(files, differing)
    parts = tuple(groups.step_parts(files))
    return BenchComparison(
        files=about,
        rows=tuple(rows),
        groups=tuple(groups.group_changes(rows, about)),
        step_parts=parts,
        differing=differing,
        warnings=(*warnings, *_row_warnings(rows, about), *_undivided(files, parts)),
        num_tests=len(list(_changes(rows))),
        left_out=tuple(id for id in ids if id not in set(shown)),
    )


def _undivided(files: Sequence[LoadedBench], parts: Sequence[StepPart]) -> Iterator[str]:
    workloads = list(groups.undivided(files, parts))
    if workloads:
        yield (
            f"steps not divided into parts: {', '.join(workloads)} (a share of waiting for data or"
            " of the host is needed in every file)"
        )


def machine_text(machine: Machine) -> str:
    """A machine on one line."""
    cpu = machine.cpu
    cores = cpu.num_cores or cpu.num_threads
    system = " ".join(filter(None, (machine.host.os, machine.host.release)))
    parts = [
        *(gpu.name for gpu in machine.gpus),
        cpu.name,
        counted_text(cores, "core") if cores else None,
        f"driver {machine.driver}" if machine.driver else None,
        f"{system} (WSL {machine.host.wsl})" if machine.host.wsl else system,
    ]
    return " · ".join(part for part in parts if part) or "unknown machine"


def _about(one: LoadedBench) -> ComparedFile:
    return ComparedFile(
        name=one.name, path=one.path, kind=one.file.kind, at=one.file.began.at,
        flatout=one.file.flatout, machine=machine_text(one.file.machine),
    )  # fmt: skip


def _row(
    id: str, files: Sequence[LoadedBench], tables: Sequence[dict[str, BenchRow]]
) -> ComparedRow:
    rows = [table.get(id) for table in tables]
    known = [row for row in rows if row is not None]
    base = rows[0]
    sides = [_Side.of(one.file) for one in files]
    values = [
        None if row is None else _value(row, side.num_processes)
        for row, side in zip(rows, sides, strict=True)
    ]
    for place, row in enumerate(rows[1:], 1):
        value = values[place]
        if base is None or row is None or value is None or not (base.samples and row.samples):
            continue
        if (row.unit, row.is_higher_better) != (base.unit, base.is_higher_better):
            unread = f"in {row.unit}, but in {base.unit} in {files[0].name}"
            values[place] = msgspec.structs.replace(value, unread=unread)
            continue
        change = _change(base, row, (sides[0], sides[place]))
        values[place] = msgspec.structs.replace(value, change=change)
    return ComparedRow(
        id=id,
        label=known[0].label,
        group=groups.group_of(id),
        unit=known[0].unit,
        is_higher_better=known[0].is_higher_better,
        values=tuple(values),
        note=_note(rows),
    )


def _value(row: BenchRow, num_processes: int) -> ComparedValue:
    if not row.samples:
        return ComparedValue(unread=row.unread or "not measured", conditions=row.conditions)
    middle = statistics.median_interval(row.samples, num_processes)
    share = None if not row.vendor else median(row.samples) / row.vendor
    return ComparedValue(
        median=middle,
        num_samples=len(row.samples),
        outliers=tuple(statistics.outliers(row.samples)),
        drift=statistics.drift(row.samples),
        of_vendor=share if row.is_higher_better else None,
        conditions=row.conditions,
    )


def _change(base: BenchRow, row: BenchRow, sides: tuple[_Side, _Side]) -> RowChange:
    """Ratio and interval; the verdict follows when all rows are known."""
    pair, processes = (base.samples, row.samples), [side.num_processes for side in sides]
    if not row.is_higher_better:
        pair, processes = pair[::-1], processes[::-1]
    found = statistics.ratio_of_medians(*pair, processes=(processes[0], processes[1]))
    ratio = found.ratio
    if row.unit in _SPEEDS and not any(is_gpu_row(one) for one in (base, row)):
        # What others took may have made the busier one slower by as much.
        excess = sides[1].load_share - sides[0].load_share
        ratio = msgspec.structs.replace(
            ratio,
            low=ratio.low * (1 - max(-excess, 0.0)),
            high=ratio.high / (1 - max(excess, 0.0)),
        )
    least = min(len(base.samples), len(row.samples))
    why = None
    if least < statistics.LEAST_SAMPLES:
        why = f"{counted_text(least, 'sample')}; at least {statistics.LEAST_SAMPLES} are needed"
    return RowChange(ratio=ratio, p_value=found.p_value, verdict="cannot tell", why=why)


def is_gpu_row(row: BenchRow) -> bool:
    """Whether it was measured on a GPU; a file can have rows of both."""
    return row.conditions.get("device", "").startswith("cuda")


def _is_beyond(ratio: Interval) -> bool:
    most = 1 + statistics.LEAST_DIFFERENCE
    return ratio.low > most or ratio.high < 1 / most


def _with_verdicts(rows: Sequence[ComparedRow]) -> list[ComparedRow]:
    """Verdicts on all ratios together: of many rows, some would differ by chance alone."""
    discovered = iter(statistics.discoveries([change.p_value for change in _changes(rows)]))
    found = []
    for row in rows:
        values = []
        for value in row.values:
            if value is not None and value.change is not None:
                change = _judged(value.change, row, next(discovered))
                value = msgspec.structs.replace(value, change=change)
            values.append(value)
        found.append(msgspec.structs.replace(row, values=tuple(values)))
    return found


def _judged(change: RowChange, row: ComparedRow, is_discovered: bool) -> RowChange:
    if change.why is not None or not _is_beyond(change.ratio):
        return change
    if not is_discovered:
        why = "chance explains it, with so many rows compared"
        return msgspec.structs.replace(change, why=why)
    words: tuple[ComparisonVerdict, ComparisonVerdict] = (
        ("faster", "slower") if row.unit in _SPEEDS else ("better", "worse")
    )
    return msgspec.structs.replace(change, verdict=words[change.ratio.middle < 1])


def _changes(rows: Sequence[ComparedRow]) -> Iterator[RowChange]:
    for row in rows:
        for value in row.values:
            if value is not None and value.change is not None:
                yield value.change


def _note(rows: Sequence[BenchRow | None]) -> str | None:
    """The conditions in which the files differ."""
    known = [row.conditions for row in rows if row is not None and row.samples]
    names = dict.fromkeys(
        name for conditions in known for name in conditions if name not in _MEASURED
    )
    differing = [
        f"{name}: " + " / ".join(conditions.get(name, "-") for conditions in known)
        for name in names
        if len({conditions.get(name) for conditions in known}) > 1
    ]
    return "; ".join(differing) or None


def _row_warnings(rows: Sequence[ComparedRow], files: Sequence[ComparedFile]) -> Iterator[str]:
    noted = [row for row in rows if row.note]
    for row in noted[:_NUM_SHOWN]:
        yield f"{row.id} was not measured in the same way ({row.note})"
    if len(noted) > _NUM_SHOWN:
        yield f"{counted_text(len(noted) - _NUM_SHOWN, 'more row')} not measured in the same way"
    for place, file in enumerate(files):
        drifts = [
            (row.id, value.drift)
            for row in rows
            if (value := row.values[place]) is not None and value.drift is not None
        ]
        if drifts:
            id, largest = max(drifts, key=lambda one: _drift_size(one[1]))
            yield (
                f"{file.name}: {counted_text(len(drifts), 'row')} drifted during the measurement"
                f" (most: {id}, {100 * largest:+.0f} %)"
            )


def _drift_size(drift: float) -> float:
    """How large a drift is: a half as large as a double."""
    # A drift to nearly nothing is -1 as a float, whose logarithm does not exist.
    return abs(math.log1p(max(drift, -1 + 1e-12)))


def _nothing_in_common(files: Sequence[LoadedBench]) -> UsageError:
    kinds = ", ".join(f"{one.name}: {one.file.kind}" for one in files)
    return UsageError(
        "bench-nothing-in-common",
        "the files have no row in common.",
        because=f"they were made by different commands or for different workloads ({kinds})",
        fix="compare files of the same `flatout bench` command and workload",
    )
