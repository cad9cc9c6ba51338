"""Bench: the limits of this machine, measured workloads, and comparisons of result files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any

import msgspec

from flatout.bench import api as bench_api
from flatout.bench import compare, kept_files, platforms, run_summary
from flatout.bench.kept_files import KeptBench
from flatout.bench.limits import is_busy
from flatout.errors import FlatoutError, UsageError
from flatout.schema.bench import BenchFile, BenchRow
from flatout.schema.bench_comparison import LoadedBench
from flatout.schema.finding import Finding, finding_from
from flatout.web.page import PageRequest, WebPage

_MEASURE = {"limits": "flatout bench limits", "run": "flatout bench run"}
_ROOFS = ("limits/memory/", "limits/matmul/")


def bench_page(request: PageRequest) -> WebPage:
    """What was measured here, and the files that can be compared."""
    kept, problems = _read(None)
    runs = [one for one in kept.files if one.bench.file.kind == "run"]
    return WebPage(
        template="bench",
        data={
            "limits": [_limits(one) for one in _newest_limits(kept.files)],
            "results": [way for one in runs for way in _ways(one)],
            "gpu_ratios": [
                {"name": one.bench.name, **msgspec.structs.asdict(ratio)}
                for one in runs
                for ratio in run_summary.gpu_ratios(one.bench.file)
            ],
            "files": [_about(one) for one in kept.files],
            "num_left_out": kept.num_left_out,
            "problems": problems,
            "commands": _MEASURE,
        },
    )


def bench_compare_page(request: PageRequest) -> WebPage:
    """The files of the query against the first of them, as `flatout bench compare` has it."""

    def compared(files: Sequence[KeptBench]) -> dict[str, Any]:
        return {"comparison": compare.compare([one.bench for one in files])}

    return _compared(request, compared)


def bench_platforms_page(request: PageRequest) -> WebPage:
    """Windows, WSL2 and Linux of the same PC, as `flatout bench platforms` has it."""

    def compared(files: Sequence[KeptBench]) -> dict[str, Any]:
        report = platforms.platforms_report([one.bench for one in files])
        return {"comparison": report.comparison, "platforms": report}

    return _compared(request, compared)


def _compared(
    request: PageRequest, compare_files: Callable[[Sequence[KeptBench]], dict[str, Any]]
) -> WebPage:
    kept, problems = _read(request.query.getlist("file"))
    data: dict[str, Any] = {"comparison": None, "platforms": None, "roofs": []}
    try:
        if len(kept.files) < 2:
            raise UsageError(
                "bench-too-few-files", "choose at least two results.", fix="the list is in /bench"
            )
        data |= compare_files(kept.files)
        data["roofs"] = [_roofs(one) for one in kept.files]
    except FlatoutError as error:
        problems.append(finding_from(error))
    return WebPage(
        template="bench_compare",
        data={**data, "files": [_about(one) for one in kept.files], "problems": problems},
    )


def _read(ids: Sequence[str] | None) -> tuple[kept_files.KeptFiles, list[Finding]]:
    try:
        kept = kept_files.read_kept(ids)
    except FlatoutError as error:
        return kept_files.KeptFiles(files=()), [finding_from(error)]
    return kept, [finding_from(error) for error in kept.problems]


def _about(one: KeptBench) -> dict[str, Any]:
    file = one.bench.file
    return {
        "id": one.id,
        "name": one.bench.name,
        "kind": file.kind,
        "at": file.began.at,
        "flatout": file.flatout,
        "torch": file.versions.get("torch"),
        "machine": compare.machine_text(file.machine),
        "problems": one.bench.problems,
        "warnings": file.warnings,
    }


def _newest_limits(files: Sequence[KeptBench]) -> list[KeptBench]:
    """Of each device the newest limits: those under an older driver or torch stay in the folder."""
    own = [one for one in files if one.is_own_limits]
    by_device: dict[str, KeptBench] = {}
    for one in sorted(own, key=lambda one: one.bench.file.began.at, reverse=True):
        by_device.setdefault(one.bench.file.settings.get("device", ""), one)
    return list(by_device.values())


def _limits(one: KeptBench) -> dict[str, Any]:
    file = one.bench.file
    return {
        **_about(one),
        "device": file.settings.get("device"),
        "roofs": _roofs(one),
        "rows": [_limit(row, file) for row in file.rows],
    }


def _limit(row: BenchRow, file: BenchFile) -> dict[str, Any]:
    """A row of the limits: its median and interval; each None where it is unknown."""
    interval = bench_api.interval_of(row, is_busy=is_busy(file), num_processes=file.num_processes)
    middle = median(row.samples) if row.samples else None
    return {
        "id": row.id, "label": row.label, "unit": row.unit, "median": middle, "interval": interval,
        "vendor": row.vendor, "vendor_source": row.vendor_source,
        "of_vendor": middle / row.vendor if middle is not None and row.vendor else None,
        "unread": row.unread,
    }  # fmt: skip


def _roofs(one: KeptBench) -> LoadedBench:
    """What a roofline is drawn from: a file with no other rows."""
    kept = [row for row in one.bench.file.rows if row.id.startswith(_ROOFS)]
    file = msgspec.structs.replace(one.bench.file, rows=tuple(kept))
    return msgspec.structs.replace(one.bench, file=file)


def _ways(one: KeptBench) -> Iterator[dict[str, Any]]:
    """Each workload on each device in each way: its speed, and against the plain loop."""
    file = one.bench.file
    for summary in run_summary.summaries(file):
        for way, rows in summary.rows.items():
            speed = summary.speed(way)
            ratio = run_summary.speedup_of(summary, way, file) if way != "plain" else None
            unread = [rows[name].unread for name in run_summary.SPEEDS if name in rows]
            yield {
                "name": one.bench.name, "at": file.began.at, "workload": summary.workload,
                "device": summary.device, "size": summary.first.conditions.get("size"),
                "way": way, "speed": median(speed.samples) if speed is not None else None,
                "unit": speed.unit if speed is not None else None,
                "unread": None if speed is not None else next(filter(None, unread), None),
                "ratio": ratio,
                "verdict": run_summary.verdict_of(ratio, file) if ratio is not None else None,
            }  # fmt: skip
