"""`flatout bench platforms`: the same PC under Windows, WSL2 and Linux."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median

import msgspec

from flatout.bench import compare, report
from flatout.bench.statistics import ratio_of_medians
from flatout.errors import UsageError
from flatout.schema.bench import BenchFile, BenchRow, DeviceState
from flatout.schema.bench_comparison import BenchComparison, Group, LoadedBench
from flatout.schema.bench_platforms import (
    PlatformCommands,
    PlatformPart,
    PlatformPlan,
    PlatformsReport,
)
from flatout.schema.machine import Host
from flatout.schema.units import bytes_text

_LINUX, _WSL2, _WINDOWS = "Linux", "WSL2", "Windows"
_THREE = (_LINUX, _WSL2, _WINDOWS)
_WORKLOADS = "mlp mnist-wsl2 resnet50"
# WSL has a part of the memory; of the whole, systems count a little differently.
_MEMORY_DIFFERENCE = 0.1
_GROUPS: tuple[Group, ...] = (
    "launch latency", "copies", "data path", "disk", "process start", "memory", "compute",
    "training",
)  # fmt: skip


def plan() -> PlatformPlan:
    """The commands for each platform, as they are typed there."""
    places = (
        (_WINDOWS, "PowerShell", "windows"),
        (_WSL2, "a WSL terminal (`wsl` in PowerShell), in your Linux home folder", "wsl2"),
        (_LINUX, "a terminal of the Linux that this PC boots without Windows", "linux"),
    )
    platforms = []
    for platform, where, name in places:
        files = (f"{name}-limits.json", f"{name}-run.json")
        commands = [
            "cd ~",
            f"flatout bench limits --again --out {files[0]}",
            f"flatout bench run {_WORKLOADS} --out {files[1]}",
        ]
        if platform == _WSL2:
            profile = "$(wslpath \"$(cmd.exe /c 'echo %USERPROFILE%' 2>/dev/null | tr -d '\\r')\")"
            commands.append(f'cp {" ".join(files)} "{profile}"')
        platforms.append(
            PlatformCommands(platform=platform, where=where, commands=tuple(commands), files=files)
        )
    names = " ".join(file for one in platforms for file in one.files)
    return PlatformPlan(
        platforms=tuple(platforms),
        join=f"flatout bench platforms {names} --html report.html",
        notes=(
            "the same versions of flatout and torch everywhere: `flatout --version`,"
            " `flatout doctor`",
            "the same power plan, nothing else running, the same screen at the same card",
            "about ten minutes for each platform; the last command of WSL copies its files to your"
            " Windows home folder, where those of Windows are",
            "copy Linux's files into the same folder, such as with a USB stick; without a Linux"
            " besides Windows, leave its two files out",
        ),
    )


def joined(paths: Sequence[Path], html: Path | None) -> PlatformsReport:
    """Joins files of several platforms: Linux is what the others are compared with.

    Args:
        paths: any number for each platform, limits and runs.
        html: where to write the report of all of them.

    Raises:
        UsageError: bench-one-platform, bench-nothing-in-common, bench-report-not-writable, and for
            files.
    """
    return platforms_report(compare.load(paths), html)


def platforms_report(files: Sequence[LoadedBench], html: Path | None = None) -> PlatformsReport:
    """As `joined`, of files that were read."""
    platforms = [merged(name, of_one) for name, of_one in _by_platform(files)]
    if len(platforms) < 2:
        names = ", ".join(one.name for one in platforms) or "none"
        raise UsageError(
            "bench-one-platform",
            "the files are all of the same platform.",
            because=f"platforms are compared with each other, and here there is only {names}",
            fix="`flatout bench platforms` prints what to run on the others",
        )
    comparison = compare.compare(platforms)
    if html is not None:
        report.write_report(html, platforms, comparison)
    return PlatformsReport(
        platforms=tuple(one.name for one in platforms),
        files=tuple(one.path for one in files),
        missing=tuple(name for name in _THREE if name not in {one.name for one in platforms}),
        doubts=tuple(_doubts(platforms)),
        parts=(*_parts(comparison), *_mnt_parts(platforms)),
        comparison=comparison,
    )


def platform_of(host: Host) -> str:
    """The name of a platform."""
    if host.wsl is not None:
        return f"WSL{host.wsl}"
    names = {"windows": _WINDOWS, "linux": _LINUX, "macos": "macOS"}
    return names.get(host.os or "", "unknown system")


def _by_platform(loaded: Sequence[LoadedBench]) -> list[tuple[str, list[LoadedBench]]]:
    found: dict[str, list[LoadedBench]] = {}
    for one in loaded:
        found.setdefault(platform_of(one.file.machine.host), []).append(one)
    order = [*_THREE, *sorted(found.keys() - set(_THREE))]
    return [(name, found[name]) for name in order if name in found]


def merged(name: str, files: Sequence[LoadedBench]) -> LoadedBench:
    """The files of a platform as one. Of a row that is in several, the first one's counts."""
    rows: dict[str, BenchRow] = {}
    problems = [f"{one.name}: {problem}" for one in files for problem in one.problems]
    for one in files:
        again = [row.id for row in one.file.rows if row.id in rows]
        if again:
            problems.append(f"{one.name}: also in an earlier file, and left out: {again[0]}"
                            f"{' and others' if again[1:] else ''}")  # fmt: skip
        rows |= {row.id: row for row in one.file.rows if row.id not in rows}
    first = files[0].file
    settings: dict[str, set[str]] = {}
    for one in files:
        for key, value in one.file.settings.items():
            settings.setdefault(key, set()).add(value)
    file = BenchFile(
        kind="run" if any(one.file.kind == "run" for one in files) else "limits",
        flatout=first.flatout,
        machine=first.machine,
        versions=first.versions,
        # What the files do not agree about is not said of all of them.
        settings={key: min(values) for key, values in settings.items() if len(values) == 1},
        began=_state([one.file.began for one in files]),
        ended=_state([one.file.ended for one in files][::-1]),
        rows=tuple(rows.values()),
        warnings=tuple(dict.fromkeys(text for one in files for text in one.file.warnings)),
    )
    return LoadedBench(name=name, path=files[0].path, file=file, problems=tuple(problems))


def _state(states: Sequence[DeviceState]) -> DeviceState:
    """The first one, with the largest load and everything that throttled."""
    loads = [one.other_cpus for one in states if one.other_cpus is not None]
    throttles = dict.fromkeys(reason for one in states for reason in one.throttles)
    return msgspec.structs.replace(
        states[0], other_cpus=max(loads, default=None), throttles=tuple(throttles)
    )


def _doubts(platforms: Sequence[LoadedBench]) -> Iterator[str]:
    """Why the files may not be of the same PC."""
    for first, second in pairwise(platforms):
        here, there = first.file.machine, second.file.machine
        names = f"{first.name} and {second.name}"
        if here.cpu.name != there.cpu.name:
            yield f"{names} have different CPUs: {here.cpu.name} and {there.cpu.name}"
        models = [", ".join(gpu.name or "unknown" for gpu in one.gpus) or "no GPU"
                  for one in (here, there)]  # fmt: skip
        uuids = [{gpu.uuid for gpu in one.gpus if gpu.uuid} for one in (here, there)]
        if models[0] != models[1]:
            yield f"{names} have different GPUs: {models[0]} and {models[1]}"
        # An ID that could not be read differs from none.
        elif all(uuids) and uuids[0] != uuids[1]:
            yield f"{names} have different GPUs, both {models[0]}, by their serial IDs"
        totals = [one.memory.total_bytes for one in (here, there)]
        is_part = _WSL2 in (first.name, second.name)
        known = [total for total in totals if total]
        if len(known) == 2 and not is_part and min(known) < (1 - _MEMORY_DIFFERENCE) * max(known):
            texts = " and ".join(bytes_text(total) for total in known)
            yield f"{names} have different memory: {texts}"
        if first.file.versions.get("torch") != second.file.versions.get("torch"):
            yield (
                f"{names} have different versions of torch:"
                f" {first.file.versions.get('torch')} and {second.file.versions.get('torch')}"
            )


def _parts(comparison: BenchComparison) -> Iterator[PlatformPart]:
    """Each group of rows, of each platform against the first."""
    for group in _GROUPS:
        for change in comparison.groups:
            if change.group == group:
                yield PlatformPart(
                    platform=change.file, what=group, against=comparison.files[0].name,
                    ratio=change.ratio,
                    rows=tuple(dict.fromkeys((change.lowest, change.highest))),
                )  # fmt: skip


def _mnt_parts(platforms: Sequence[LoadedBench]) -> Iterator[PlatformPart]:
    """Windows' drives under WSL against its own disk: where data must not be."""
    for one in platforms:
        rows = {row.id: row for row in one.file.rows if row.samples}
        for id, row in rows.items():
            if not id.startswith("limits/disk/mnt-"):
                continue
            end = id.rpartition("/")[2]
            own = next((rows[f"limits/disk/{place}/{end}"] for place in ("data", "home")
                        if f"limits/disk/{place}/{end}" in rows), None)  # fmt: skip
            if own is not None and median(own.samples) > 0:
                found = ratio_of_medians(own.samples, row.samples)
                yield PlatformPart(
                    platform=one.name, what=row.label, against=own.label, ratio=found.ratio,
                    rows=(id, own.id),
                )  # fmt: skip
