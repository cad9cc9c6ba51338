"""Bench files, read with suspicion: they come from other machines and other people."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec

from flatout.errors import FlatoutError, UsageError
from flatout.schema.bench import BENCH_VERSION, BenchFile, BenchRow, DeviceState
from flatout.schema.bench_comparison import LoadedBench
from flatout.schema.machine import Machine
from flatout.schema.units import bytes_text, count_text, counted_text
from flatout.system import atomic_files

# A file of all workloads has 200 KiB. What is larger takes a thousand times as long to compare.
_MOST_BYTES = 16 * 2**20
_MOST_ROWS, _MOST_SAMPLES = 5_000, 200_000
_LONGEST_NAME = 24
# More than any machine has; a number that no float can hold would end the comparison.
_MOST_CPUS, _MOST_MEMORY_BYTES = 10**6, 2**60
# What is shown of problems with rows.
_NUM_PROBLEMS = 3
_MEASURE_AGAIN = "measure again with `flatout bench limits` or `flatout bench run`"


class _Version(msgspec.Struct, frozen=True):
    bench_version: int | None = None


def read_files(paths: Sequence[Path]) -> tuple[LoadedBench, ...]:
    """Reads files to compare.

    Raises:
        UsageError: bench-file-not-found, bench-file-unreadable, bench-file-newer,
            bench-file-too-large.
    """
    files = [_read(path) for path in paths]
    cleaned = [_cleaned(file) for file in files]
    names = short_names(paths)
    return tuple(
        LoadedBench(name=name, path=str(path), file=file, problems=problems)
        for name, path, (file, problems) in zip(names, paths, cleaned, strict=True)
    )


def loaded(file: BenchFile, name: str, path: str) -> LoadedBench:
    """A result that was just measured, as if it had been read from a file."""
    cleaned, problems = _cleaned(file)
    return LoadedBench(name=name, path=path, file=cleaned, problems=problems)


def short_names(paths: Sequence[Path]) -> list[str]:
    """The file names without endings; with their folders or a number where they are equal."""
    names = [path.stem for path in paths]
    if len(set(names)) < len(names):
        names = [f"{path.parent.name}/{path.stem}".lstrip("/") for path in paths]
    names = [_shortened(name) for name in names]
    seen: dict[str, int] = {}
    for place, name in enumerate(names):
        seen[name] = seen.get(name, 0) + 1
        if seen[name] > 1:
            names[place] = f"{name} ({seen[name]})"
    return names


def _shortened(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else "..." + name[3 - _LONGEST_NAME :]


def _read(path: Path) -> BenchFile:
    content = _content(path)
    try:
        version = msgspec.json.decode(content, type=_Version).bench_version
        if version is not None and version > BENCH_VERSION:
            raise _newer(path, version)
        file = msgspec.json.decode(content, type=BenchFile)
    # Not JSON, not UTF-8, not a bench file, or nested too deep.
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _unreadable(path, str(error)) from error
    if version is None or version < 1:
        raise _unreadable(path, "it has no `bench_version`, or one that never existed")
    num_samples = sum(len(row.samples) for row in file.rows)
    for what, num, most in (
        ("row", len(file.rows), _MOST_ROWS), ("sample", num_samples, _MOST_SAMPLES)
    ):  # fmt: skip
        if num > most:
            raise _too_large(path, f"{counted_text(num, what)}; the limit is {count_text(most)}")
    return file


def _content(path: Path) -> bytes:
    if not path.exists():
        raise UsageError(
            "bench-file-not-found",
            f"{path} does not exist.",
            fix="check the path; `flatout bench limits` writes such a file",
        )
    try:
        with atomic_files.mapped_os_errors(path), atomic_files.open_file(path) as file:
            content = file.read(_MOST_BYTES + 1)
    except FlatoutError as error:
        raise _unreadable(path, error.because or error.problem) from error
    if len(content) > _MOST_BYTES:
        raise _too_large(path, f"it is larger than {bytes_text(_MOST_BYTES)}")
    return content


def _unreadable(path: Path, because: str) -> UsageError:
    return UsageError(
        "bench-file-unreadable",
        f"{path} is not a readable bench file.",
        because=because,
        fix=f"copy it again, if it was cut off; otherwise {_MEASURE_AGAIN}",
    )


def _newer(path: Path, version: int) -> UsageError:
    return UsageError(
        "bench-file-newer",
        f"{path} was written by a newer flatout.",
        because=f"its format is version {version}; this flatout reads up to {BENCH_VERSION}",
        fix="update flatout: flatout self update",
    )


def _too_large(path: Path, because: str) -> UsageError:
    return UsageError(
        "bench-file-too-large",
        f"{path} is too large for a bench file.",
        because=because,
        fix=f"check that it is the right file, or {_MEASURE_AGAIN}",
    )


def _cleaned(file: BenchFile) -> tuple[BenchFile, tuple[str, ...]]:
    """Rows by unique id, those with impossible numbers without samples; and what was wrong."""
    rows: dict[str, BenchRow] = {}
    problems = []
    for row in file.rows:
        if row.id in rows:
            problems.append(f"{row.id}: a second row of that id was ignored")
            continue
        problem = _problem(row)
        if problem is not None:
            problems.append(f"{row.id}: {problem}")
            row = msgspec.structs.replace(row, samples=(), unread=problem)
        if row.vendor is not None and not _is_possible(row.vendor):
            row = msgspec.structs.replace(row, vendor=None, vendor_source=None)
        rows[row.id] = row
    if len(problems) > _NUM_PROBLEMS:
        problems[_NUM_PROBLEMS:] = [f"{len(problems) - _NUM_PROBLEMS} more like these"]
    cleaned = msgspec.structs.replace(
        file, rows=tuple(rows.values()), began=_possible(file.began), ended=_possible(file.ended),
        machine=_possible_machine(file.machine),
    )  # fmt: skip
    return cleaned, tuple(problems)


def _possible(state: DeviceState) -> DeviceState:
    """Without readings that no sensor gives."""
    wrong = {
        name: None
        for name, value in msgspec.structs.asdict(state).items()
        if isinstance(value, float) and not -100 < value < 1e12
    }
    return msgspec.structs.replace(state, **wrong)


def _possible_machine(machine: Machine) -> Machine:
    """Without counts and sizes that no machine has."""

    def within(number: int | None, most: int) -> int | None:
        return number if number is not None and 0 < number <= most else None

    cpu, memory = machine.cpu, machine.memory
    return msgspec.structs.replace(
        machine,
        cpu=msgspec.structs.replace(
            cpu,
            num_cores=within(cpu.num_cores, _MOST_CPUS),
            num_threads=within(cpu.num_threads, _MOST_CPUS),
        ),
        memory=msgspec.structs.replace(
            memory, total_bytes=within(memory.total_bytes, _MOST_MEMORY_BYTES)
        ),
        gpus=tuple(
            msgspec.structs.replace(gpu, memory_bytes=within(gpu.memory_bytes, _MOST_MEMORY_BYTES))
            for gpu in machine.gpus
        ),
    )


def _problem(row: BenchRow) -> str | None:
    # A share or a loss may be zero, but no ratio can be made of it.
    wrong = next((sample for sample in row.samples if not _is_possible(sample)), None)
    if wrong is None:
        return None
    return f"{wrong:g} is not a measured value" if wrong else "a zero has no ratio to other values"


def _is_possible(number: float) -> bool:
    return math.isfinite(number) and 1e-30 < number < 1e30
