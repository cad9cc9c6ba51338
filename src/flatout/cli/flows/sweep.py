"""A sweep: shown while it runs, drawn at its end."""

from __future__ import annotations

from pathlib import Path

from flatout.cli.render import show
from flatout.cli.render.show_sweep import SweepDisplay, print_sweep
from flatout.cluster import api as cluster_api
from flatout.errors import FlatoutError
from flatout.monitor import sweep_plots
from flatout.runs import api as runs_api
from flatout.runs import trackers
from flatout.runs.sweep import result
from flatout.schema.finding import finding_from
from flatout.schema.suggested_command import resume_sweep_command
from flatout.schema.sweep import Sweep, SweepRequest
from flatout.schema.units import count_text, counted_text

_INTERRUPTED_CODE = 130


def run(request: SweepRequest, *, is_json: bool) -> int:
    """Carries it out; Ctrl-C stops it so that it can be resumed. Returns the exit code."""
    for finding in request.training.warnings():
        show.print_finding(finding)
    sweep: Sweep | None = None
    with runs_api.interrupts() as interrupts, SweepDisplay(is_quiet=is_json) as display:
        for sweep in cluster_api.sweep(request, interrupts):
            display.take(sweep, is_stopping=bool(interrupts.count))
    assert sweep is not None, "a sweep yields at least its end"
    plots = [] if interrupts.count else _drawn(sweep)
    _show(sweep, plots, is_json=is_json)
    num_trials, num_requested = sweep.header.num_trials, request.num_trials or 0
    if num_trials < num_requested:
        all_text = counted_text(num_trials, "combination")
        show.print_note(f"there are only {all_text}, so not {count_text(num_requested)} trials")
    if interrupts.count:
        show.print_note(f"resume it: {resume_sweep_command(sweep.id)}")
    for finding in trackers.sweep_findings(sweep):
        show.print_finding(finding)
    return _INTERRUPTED_CODE if interrupts.count else 0


def show_sweep(text: str, *, has_plots: bool, is_json: bool) -> None:
    """Shows a sweep, whether it is being carried out or not."""
    sweep = result.read_sweep(text)
    plots = sweep_plots.draw_sweep(sweep) if has_plots else None
    if plots is None:
        plots = sorted((Path(sweep.folder) / "plots").glob("*.png"))
    _show(sweep, plots, is_json=is_json)


def _show(sweep: Sweep, plots: list[Path], *, is_json: bool) -> None:
    if is_json:
        show.print_json({"sweep": sweep, "plots": [str(path) for path in plots]})
    else:
        print_sweep(sweep, plots)


def _drawn(sweep: Sweep) -> list[Path]:
    if not runs_api.can_draw():
        return []
    try:
        return sweep_plots.draw_sweep(sweep)
    except FlatoutError as error:
        show.print_finding(finding_from(error, "warning"))
        return []
