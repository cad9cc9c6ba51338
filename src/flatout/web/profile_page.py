"""Profiles: where the time of a step goes, as `flatout profile` has last found it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flatout.errors import UsageError
from flatout.schema.step_profile import Held, LineTime, MemoryUse, OperatorTime, StepProfile
from flatout.system.store.profile_reports import kept_reports, read_report
from flatout.web.page import PageRequest, Section, WebPage, section

_MOST_REPORTS, _MOST_ROWS = 200, 60
_COMMAND = "flatout profile digits"


def profile_page(request: PageRequest) -> WebPage:
    """The report that the query names, or the newest one, and a list of all."""
    kept = section(kept_reports)
    paths: dict[str, Path] = kept.value or {}
    wanted = request.query.get("of") or next(iter(paths), None)
    return WebPage(
        template="profiles",
        data={
            "ids": list(paths)[:_MOST_REPORTS],
            "id": wanted,
            "report": kept if wanted is None else _report(wanted, paths),
            "command": _COMMAND,
        },
    )


def _report(id: str, paths: dict[str, Path]) -> Section:
    def read() -> dict[str, Any]:
        if id not in paths:
            raise UsageError(
                "no-such-profile", f"there is no profile `{id}`.", fix="list profiles: /profiles"
            )
        return _shown(read_report(paths[id]))

    return section(read)


def _shown(report: StepProfile) -> dict[str, Any]:
    whole_s = report.mean_step_s if report.step_s else None
    return {
        "subject": report.subject,
        "at": report.at,
        "device": report.device_name or report.device,
        "torch": report.torch,
        "step_s": whole_s,
        "samples_per_s": report.samples_per_s,
        "unit": report.unit,
        "overhead": report.overhead,
        "split": [
            {"part": one.part, "seconds": one.seconds, "share": _share(one.seconds, whole_s)}
            for one in report.split
            if one.seconds
        ],
        "advice": report.advice,
        "warnings": report.warnings,
        "lines": [_line(one, whole_s) for one in report.lines[:_MOST_ROWS]],
        "operators": [_operator(one, whole_s) for one in report.operators[:_MOST_ROWS]],
        "kernels": [_operator(one, whole_s) for one in report.kernels[:_MOST_ROWS]],
        "layers": [_operator(one, whole_s) for one in report.layers[:_MOST_ROWS]],
        "peak_bytes": report.memory.peak_bytes,
        "why_no_peak": report.memory.reason,
        "at_peak": [_held(one, report.memory) for one in report.memory.at_peak],
        "recipe": report.recipe | report.settings,
    }


def _share(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _held(one: Held, memory: MemoryUse) -> dict[str, Any]:
    share = _share(one.num_bytes, memory.peak_bytes)
    return {"name": one.name, "num_bytes": one.num_bytes, "share": share}


def _line(line: LineTime, whole_s: float | None) -> dict[str, Any]:
    return {
        "place": f"{Path(line.file).name}:{line.line}", "text": line.text,
        "seconds": line.seconds, "share": _share(line.seconds, whole_s),
    }  # fmt: skip


def _operator(row: OperatorTime, whole_s: float | None) -> dict[str, Any]:
    """A row: its own time is that on the device that computes."""
    own_s = row.self_s if row.device_s is None else row.device_s
    return {
        "name": row.name, "shapes": row.shapes, "calls": row.calls, "self_s": own_s,
        "total_s": row.total_s if row.device_total_s is None else row.device_total_s,
        "share": _share(own_s, whole_s),
    }  # fmt: skip
