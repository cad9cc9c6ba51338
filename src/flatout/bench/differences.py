"""What differs between bench files, and what makes their numbers doubtful."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from flatout.schema.bench import BenchFile, DeviceState
from flatout.schema.bench_comparison import Differing, LoadedBench
from flatout.schema.tuning import Load
from flatout.schema.units import percent_text

# Clocks that differ by less are the same: sensors round, and clocks step.
_SAME_CLOCK = 0.03
# Throttle reasons of a GPU that has nothing to do.
_HARMLESS = {"idle", "none"}
# Beyond it, the rest of the machine says nothing.
_LARGEST_LOAD = 0.9
_MOST_NAMES = 4

_FACTS: dict[str, Callable[[BenchFile], object]] = {
    "CPU": lambda file: file.machine.cpu.name,
    "cores": lambda file: file.machine.cpu.num_cores,
    "CPU threads": lambda file: file.machine.cpu.num_threads,
    "CPU features": lambda file: ", ".join(sorted(file.machine.cpu.features)) or None,
    "GPUs": lambda file: ", ".join(gpu.name or "unknown" for gpu in file.machine.gpus) or None,
    "driver": lambda file: file.machine.driver,
    "driver model": lambda file: next((gpu.driver_model for gpu in file.machine.gpus), None),
    "system": lambda file: file.machine.host.os,
    "kernel": lambda file: file.machine.host.release,
    "WSL": lambda file: file.machine.host.wsl,
    "container": lambda file: file.machine.host.container,
    "power limit": lambda file: _rounded(file.began.power_limit_w, " W"),
    "on battery": lambda file: _yes_no(file.began.is_on_battery, file.ended.is_on_battery),
    "flatout": lambda file: file.flatout,
}


def load_share(file: BenchFile) -> float:
    """The share of the CPUs that other programs used, 0 where it is little or unknown."""
    loads = [one.other_cpus for one in (file.began, file.ended) if one.other_cpus is not None]
    num_cpus = file.machine.cpu.num_threads or 0
    if not loads or num_cpus < 1:
        return 0.0
    load = Load(other_cpus=max(loads), num_cpus=num_cpus)
    return min(max(load.other_cpus, 0.0) / num_cpus, _LARGEST_LOAD) if load.is_busy else 0.0


def differing(files: Sequence[LoadedBench]) -> tuple[Differing, ...]:
    """The facts of machines, versions and settings that are not the same everywhere."""
    columns = [_facts_of(one.file) for one in files]
    names = dict.fromkeys([*_FACTS, *(name for column in columns for name in column)])
    rows = (Differing(name=name, values=tuple(column.get(name) for column in columns))
            for name in names)  # fmt: skip
    return tuple(row for row in rows if len(set(row.values)) > 1)


def warnings(files: Sequence[LoadedBench], differing: Sequence[Differing]) -> tuple[str, ...]:
    """What a reader must know before believing the ratios."""
    found = [f"{one.name}: {problem}" for one in files for problem in one.problems]
    # A file says itself what disturbed it; here is what that does to a comparison.
    if len(files) > 1:
        found += [f"{one.name}: {text}" for one in files for text in _state_warnings(one.file)]
    found += [f"{one.name}: {text}" for one in files for text in one.file.warnings]
    found += _clock_warnings(files)
    if len({one.file.kind for one in files}) > 1:
        found.append("the files are of different kinds, limits and run: few rows are in both")
    if len(differing) > 1:
        names = [row.name for row in differing]
        rest = len(names) - _MOST_NAMES
        text = ", ".join(names[:_MOST_NAMES]) + (f" and {rest} more" if rest > 0 else "")
        found.append(
            f"the files differ in more than one thing ({text}): the ratios show the effect of all"
            " of them together"
        )
    return tuple(dict.fromkeys(found))


def _facts_of(file: BenchFile) -> dict[str, str]:
    facts = {name: fact(file) for name, fact in _FACTS.items()}
    facts |= {_version_name(name): value for name, value in file.versions.items()}
    facts |= {f"setting {name}": value for name, value in file.settings.items()}
    return {name: str(value) for name, value in facts.items() if value is not None}


def _version_name(name: str) -> str:
    # A package may be called like a fact.
    return f"{name} version" if name in _FACTS else name


def _state_warnings(file: BenchFile) -> Iterator[str]:
    share = load_share(file)
    if share:
        yield (
            f"other programs used up to {percent_text(share, 0)} of the CPUs; intervals are widened"
            " where the files differ in this"
        )
    throttles = {one for state in (file.began, file.ended) for one in state.throttles} - _HARMLESS
    if throttles:
        yield f"the device was throttled ({', '.join(sorted(throttles))})"
    if file.began.is_on_battery or file.ended.is_on_battery:
        yield "the machine was running on battery"


def _clock_warnings(files: Sequence[LoadedBench]) -> Iterator[str]:
    first = files[0]
    fields: dict[str, Callable[[DeviceState], float | None]] = {
        "clock": lambda state: state.clock_hz,
        "memory clock": lambda state: state.memory_clock_hz,
    }
    for other in files[1:]:
        # A CPU's clock was read when it had nothing to do any more.
        if not all("cuda" in one.file.settings.get("device", "") for one in (first, other)):
            continue
        for name, read in fields.items():
            here, there = read(first.file.ended), read(other.file.ended)
            if _are_apart(here, there):
                yield f"{name}: {_mhz(here)} in {first.name}, {_mhz(there)} in {other.name}"


def _are_apart(first: float | None, second: float | None) -> bool:
    if first is None or second is None or first <= 0 or second <= 0:
        return False
    return abs(second - first) > _SAME_CLOCK * first


def _mhz(hz: float | None) -> str:
    return "unknown" if hz is None else f"{hz / 1e6:,.0f} MHz"


def _rounded(value: float | None, unit: str) -> str | None:
    return None if value is None else f"{value:.0f}{unit}"


def _yes_no(*states: bool | None) -> str | None:
    known = [state for state in states if state is not None]
    return None if not known else "yes" if any(known) else "no"
