"""Run: the result or the error first, then how it was trained and what happened."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from flatout.runs import api as runs_api
from flatout.schema.metric_curves import CurveView
from flatout.schema.run import Run
from flatout.schema.run_lines import Event, Tuned
from flatout.schema.suggested_command import resume_run, show_command, stop_command
from flatout.schema.tuning import Decision, Result
from flatout.system import atomic_files
from flatout.system.store.daily_files import size_bytes
from flatout.system.store.log_tail import log_names, log_tail
from flatout.system.store.run_folder import RunFolder
from flatout.web.charts import charts_of
from flatout.web.live import state_of
from flatout.web.page import PageRequest, Section, WebPage, section
from flatout.web.run_row import run_row

_NUM_EVENTS = 200
# Of its rates there are too many in a longer file: the share of the machine's limit is left out.
_MOST_RATED_BYTES = 8 << 20


def run_page(request: PageRequest) -> WebPage:
    """Everything that is known about a run. A part that cannot be read is named.

    Raises:
        UsageError: unknown-run.
    """
    folder = request.context.runs.find(request.run)
    # Before anything is read: what comes later is news.
    state = state_of(folder)
    row = request.context.runs.row(folder.path)
    run = row.run if row is not None else None
    charts, chart_problems = charts_of(request.context, [folder.path.name], CurveView())
    return WebPage(
        template="run",
        data={
            "id": folder.path.name,
            "run": run,
            "is_stopping": os.path.exists(folder.stop),
            "row": run_row(row) if row is not None else None,
            "state": state,
            "metrics": row.metrics if row is not None else {},
            "parameters": row.parameters if row is not None else {},
            **(_facts(request, run) if isinstance(run, Run) else _NO_FACTS),
            "charts": charts,
            "chart_problems": chart_problems,
            "history": section(lambda: _history(folder)),
            "checkpoints": section(folder.checkpoint_steps),
            "log": section(lambda: _log(request, folder)),
        },
    )


# Of a run that cannot be read.
_NO_FACTS: dict[str, Any] = {
    "is_damaged": True, "is_live": False, "has_sweep": False, "commands": {}, "recipe": [],
    "utilization": Section(), "split_s": Section(),
}  # fmt: skip


def _facts(request: PageRequest, run: Run) -> dict[str, Any]:
    sweep = run.header.sweep
    return {
        "is_damaged": False,
        "is_live": run.status == "running",
        "has_sweep": sweep is not None and request.context.sweeps.has(sweep.id),
        "commands": _commands(run),
        "recipe": _recipe(run),
        "utilization": section(lambda: _utilization(run)),
        "split_s": section(lambda: _split(run)),
    }


def _commands(run: Run) -> dict[str, str]:
    """Commands to copy, by what they do."""
    if run.status == "running":
        return {"follow": show_command(run.typed, "--follow"), "stop": stop_command(run.typed)}
    resume = {"resume": resume_run(run)} if run.status != "finished" else {}
    return {"show": show_command(run.typed), **resume}


def _utilization(run: Run) -> Any:
    if size_bytes(RunFolder(Path(run.folder)).metrics) > _MOST_RATED_BYTES:
        return None
    return runs_api.with_utilization(run).utilization


def _split(run: Run) -> list[dict[str, Any]]:
    """Where the time went, the longest part first."""
    split = runs_api.split_of(run)
    whole = sum(split.values()) or 1.0
    parts = sorted(split.items(), key=lambda part: -part[1])
    return [{"name": name, "seconds": seconds, "share": seconds / whole}
            for name, seconds in parts if seconds > 0]  # fmt: skip


def _recipe(run: Run) -> list[dict[str, Any]]:
    """Fields with value, origin and reason; those that were chosen or set first."""
    if run.recipe is None:
        return []
    fields = msgspec.structs.asdict(run.recipe)
    rows = [{"field": name, **msgspec.structs.asdict(choice)} for name, choice in fields.items()]
    return sorted(rows, key=lambda row: row["origin"] == "default")


def _history(folder: RunFolder) -> dict[str, Any]:
    """The last events, and the search for the recipe, if there was one."""
    events = atomic_files.read_lines(folder.events, Event)
    tuned = next((line for line in reversed(events) if isinstance(line, Tuned)), None)
    return {
        "events": [_event(line) for line in events[-_NUM_EVENTS:]],
        "num_left_out": max(0, len(events) - _NUM_EVENTS),
        "ladder": _ladder(tuned.decision, tuned.unit) if tuned is not None else None,
    }


def _event(line: Any) -> dict[str, Any]:
    """An event with its kind, and what distinguishes it from others of its kind."""
    known = msgspec.to_builtins(line)
    finding = getattr(line, "finding", None)
    detail = finding.problem if finding is not None else getattr(line, "reason", None)
    adaptation = getattr(line, "adaptation", None)
    if adaptation is not None:
        detail = f"{adaptation.kind}: {adaptation.before} -> {adaptation.after}"
        if adaptation.because:
            detail = f"{detail} ({adaptation.because})"
    kind = "resumed" if getattr(line, "resumed", False) else known["kind"]
    trial = line.trial if kind == "trying" else line.result.trial if kind == "tried" else None
    if trial is not None:
        detail = trial.candidate.name
    return {"at": line.at, "step": line.step, "kind": kind, "detail": detail,
            "size_bytes": known.get("size_bytes")}  # fmt: skip


def _ladder(decision: Decision, unit: str) -> dict[str, Any]:
    """The way from the plain loop to the recipe; what lost, was rejected or not tried, and why."""
    return {
        "unit": unit,
        "why": decision.why,
        "search_s": decision.search_s,
        "speedup": decision.speedup,
        "rungs": decision.rungs,
        "lost": [_lost(result) for result in decision.lost],
        "rejected": [_rejected(result) for result in decision.refused],
        "skipped": decision.skipped,
    }


def _lost(result: Result) -> dict[str, Any]:
    return {
        "name": result.trial.candidate.name,
        "speedup": result.speedup,
        "problem": result.problem.problem if result.problem is not None else None,
    }


def _rejected(result: Result) -> dict[str, Any]:
    failed: Sequence[Any] = result.verdict.failed if result.verdict is not None else ()
    return {"name": result.trial.candidate.name, "checks": failed}


def _log(request: PageRequest, folder: RunFolder) -> dict[str, Any]:
    """The end of a log. The query names one of those that there are; it is not part of a path."""
    names = log_names(folder)
    if not names:
        return {"names": [], "name": None, "text": ""}
    wanted = request.query.get("log", names[0])
    name = wanted if wanted in names else names[0]
    return {"names": names, "name": name, "text": log_tail(folder, name)}
