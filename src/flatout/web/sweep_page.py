"""Sweeps: all of them; and one with its trials, its pictures, and the best as a command."""

from __future__ import annotations

from typing import Any, get_args

from flatout.monitor import sweep_plots
from flatout.runs.sweep import result
from flatout.schema.suggested_command import command_line, resume_sweep_command, typed_value
from flatout.schema.sweep import Choices, EndStatus, Range, Sweep, SweepTrial
from flatout.system.store import sweep_folder
from flatout.system.store.sweep_folder import SweepFolder
from flatout.web.page import PageContext, PageRequest, WebPage, section

_NUM_ON_PAGE = 50
_MOST_PAGES = 10**6
# Of a sweep's table; all trials are in the list of runs.
_MOST_ROWS = 500


def sweeps_page(request: PageRequest) -> WebPage:
    """A page of the list, the sweep that was written to last first."""
    paths = request.context.sweeps.paths()
    number = request.number("page", 1, _MOST_PAGES) or 1
    shown = paths[(number - 1) * _NUM_ON_PAGE : number * _NUM_ON_PAGE]
    return WebPage(
        template="sweeps",
        data={
            "sweeps": [_row(SweepFolder(path)) for path in shown],
            "page_number": number,
            "num_pages": max(1, -(-len(paths) // _NUM_ON_PAGE)),
            "num_found": len(paths),
        },
    )


def sweep_page(request: PageRequest) -> WebPage:
    """A sweep as it stands. A part that cannot be read is named.

    Raises:
        UsageError: unknown-sweep.
    """
    folder = request.context.sweeps.find(request.sweep)
    known = section(lambda: _facts(request.context, folder))
    return WebPage(template="sweep", data={"id": folder.path.name, "sweep": known})


def _row(folder: SweepFolder) -> dict[str, Any]:
    """What the list shows of a sweep; the same keys for one that cannot be read."""
    unknown: dict[str, Any] = {
        "status": "unreadable", "experiment": None, "created_at": None, "num_trials": None,
        "counts": None, "metric": None, "best_value": None,
    }  # fmt: skip
    known = section(lambda: _summary(folder, _outline(folder)))
    return {"id": folder.path.name, **(known.value or unknown), "problem": known.problem}


def _outline(folder: SweepFolder) -> Sweep:
    """A sweep by its own files: how far its trials are is in their runs, which are not read."""
    header = sweep_folder.read_header(folder)
    return result.sweep_of(folder, header, sweep_folder.read_trials(folder).values())


def _summary(folder: SweepFolder, sweep: Sweep) -> dict[str, Any]:
    header = sweep.header
    best = next((one for one in sweep.trials if one.trial == sweep.best), None)
    return {
        "status": _status(folder, sweep),
        "experiment": header.training.experiment,
        "created_at": header.created_at,
        "num_trials": header.num_trials,
        "counts": {
            name: sum(one.status == name for one in sweep.trials) for name in get_args(EndStatus)
        },
        "metric": header.metric,
        "best_value": best.value if best is not None else None,
    }


def _status(folder: SweepFolder, sweep: Sweep) -> str:
    if folder.is_in_use():
        return "running"
    if sweep.num_left:
        return "interrupted"
    return "finished" if sweep.best is not None else "failed"


def _facts(context: PageContext, folder: SweepFolder) -> dict[str, Any]:
    sweep = result.sweep_in(folder)
    header = sweep.header
    summary = _summary(folder, sweep)
    # Someone may have removed runs of which only the best was of interest.
    runs = {path.name for path in context.runs.paths()}
    rows = [_trial(one, runs) for one in sweep.ranking]
    # Those that run are always shown.
    shown = rows[:_MOST_ROWS] + [row for row in rows[_MOST_ROWS:] if row["status"] == "running"]
    return {
        **summary,
        "folder": sweep.folder,
        "sampler": header.sampler,
        "pruner": header.pruner,
        "direction": header.direction,
        "space": {name: range_text(ends) for name, ends in header.space.items()},
        "fixed": [*header.training.settings, *header.training.uses],
        "best": next((row for row in rows if row["trial"] == sweep.best), None),
        "commands": _commands(folder, sweep, summary["status"]),
        "trials": shown,
        "num_left_out": len(rows) - len(shown),
        "importances": section(lambda: context.sweeps.importances(sweep)),
        "parallel": section(lambda: _parallel(folder, sweep)),
    }


def _trial(one: SweepTrial, runs: set[str]) -> dict[str, Any]:
    return {
        "trial": one.trial, "run": one.run, "has_run": one.run in runs, "status": one.status,
        "value": one.value, "duration_s": one.duration_s, "parameters": one.parameters,
        "problem": one.finding.problem if one.finding is not None else None,
    }  # fmt: skip


def _commands(folder: SweepFolder, sweep: Sweep, status: str) -> dict[str, str]:
    """Commands to copy, by what they do."""
    name = folder.path.name
    again = {"again": sweep.command} if sweep.command is not None else {}
    resume = {"resume_sweep": resume_sweep_command(name)}
    show = {"show_sweep": command_line(["flatout", "sweep", "show", name])}
    return {**again, **(resume if status == "interrupted" else {}), **show}


def _parallel(folder: SweepFolder, sweep: Sweep) -> dict[str, Any] | None:
    """The axes, and a line for each trial that has finished, the best first; None for one line."""
    trials = sweep_plots.charted_trials(sweep)[: sweep_plots.MOST_LINES]
    if len(trials) < 2:
        return None
    try:
        axes = sweep_plots.parallel_axes(sweep, trials)
    except (KeyError, TypeError, ValueError) as error:
        because = f"a trial has other parameters than its sweep: {error}"
        raise sweep_folder.damaged(folder, because) from error
    return {"axes": axes, "lines": [{"run": one.run, "value": one.value} for one in trials]}


def range_text(ends: Range | Choices) -> str:
    """What a parameter is varied in, as it is typed: 0.001..0.1:log."""
    if isinstance(ends, Choices):
        return ",".join(map(typed_value, ends.values))
    step = ends.step if not (ends.is_int and ends.step == 1) else None
    end = ":log" if ends.is_log else f":step={typed_value(step)}" if step is not None else ""
    return f"{typed_value(ends.low)}..{typed_value(ends.high)}{end}"
