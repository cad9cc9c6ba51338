"""A sweep as a table, the best trial first: while it runs and afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from flatout.cli.render import show, wording
from flatout.cli.render.tables import plain_table
from flatout.runs.sweep.space import num_combinations
from flatout.schema.experiment_spec import Value
from flatout.schema.suggested_command import typed_value
from flatout.schema.sweep import Sweep, SweepTrial, TrialStatus
from flatout.schema.units import count_text, counted_text, percent_text, seconds_text

_STYLES: dict[TrialStatus, str] = {
    "finished": "green", "running": "green", "pruned": "dim", "stopped": "yellow",
    "interrupted": "yellow", "failed": "red",
}  # fmt: skip
# Lines of the display besides its rows.
_OTHER_LINES = 6
# Of a sweep that is shown when it is over.
_MOST_ROWS = 40


class SweepDisplay:
    """Shows a sweep while it runs: a table on a terminal, else a line for each trial.

    Args:
        is_quiet: everything goes to stderr, since stdout carries a document.
    """

    def __init__(self, *, is_quiet: bool = False) -> None:
        self._console = show.make_console(is_error=is_quiet)
        is_alive = show.is_alive(self._console)
        live = Live(console=self._console, auto_refresh=False, transient=True)
        self._live = live if is_alive else None
        self._shown: set[int] = set()
        self._has_begun = self._is_stopping = False

    def __enter__(self) -> SweepDisplay:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live:
            self._live.stop()

    def take(self, sweep: Sweep, *, is_stopping: bool) -> None:
        """Shows how it stands."""
        if not self._has_begun:
            self._has_begun = True
            show.print_lines(self._console, _head(sweep))
        if is_stopping and not self._is_stopping:
            self._is_stopping = True
            text = "stopping the trials after their steps; Ctrl-C again stops immediately"
            self._console.print(Text(text, "yellow"), soft_wrap=True)
        if self._live:
            self._live.start()
            num_rows = max(3, self._console.height - _OTHER_LINES)
            picture = Group(_table(sweep, self._console, num_rows), Text(_state_text(sweep), "dim"))
            self._live.update(picture, refresh=True)
        else:
            self._print_ended(sweep)

    def _print_ended(self, sweep: Sweep) -> None:
        for one in sweep.trials:
            if one.trial not in self._shown and one.has_ended:
                self._shown.add(one.trial)
                parts = [one.run, one.status, *_value_parts(sweep, one), _settings(one.parameters)]
                self._console.print(wording.DOT.join(parts), soft_wrap=True)


def print_sweep(sweep: Sweep, plots: Sequence[Path]) -> None:
    """Prints a sweep: its trials, the importance of each parameter, the best as a command."""
    console = show.make_console()
    console.print(Text(sweep.id, "bold") + Text(f"  {_state_text(sweep)}"), soft_wrap=True)
    console.print(_table(sweep, console, _MOST_ROWS))
    console.print()
    lines = []
    if sweep.importances:
        parts = [f"{name} {percent_text(one, 0)}" for name, one in sweep.importances.items()]
        lines.append(("importance", wording.DOT.join(parts)))
    if plots:
        names = ", ".join(path.name for path in plots)
        lines.append(("plots", f"{names} in {wording.home_text(str(plots[0].parent))}"))
    best = next((one for one in sweep.trials if one.trial == sweep.best), None)
    if best is not None:
        text = wording.DOT.join([best.run, *_value_parts(sweep, best), _settings(best.parameters)])
        lines.append(("best", text))
    show.print_lines(console, lines)
    if sweep.command is not None:
        show.print_command(console, "next", sweep.command)


def _head(sweep: Sweep) -> list[tuple[str, str]]:
    header = sweep.header
    method = [counted_text(header.num_trials, "trial"), header.sampler]
    is_whole = header.sampler == "grid" and header.num_trials == num_combinations(header.space)
    method += ["all combinations"] if is_whole else []
    method += [f"{header.pruner} pruner"] if header.pruner != "none" else []
    return [
        ("sweep", f"{sweep.id}{wording.DOT}{wording.home_text(sweep.folder)}"),
        ("experiment", wording.near_text(header.training.experiment or "")),
        ("search", wording.DOT.join(method)),
    ]


def _state_text(sweep: Sweep) -> str:
    total = sweep.header.num_trials
    done = total - sweep.num_left
    parts = [f"{count_text(done)} of {counted_text(total, 'trial')}"]
    for status in ("running", "interrupted", "pruned", "stopped", "failed"):
        number = sum(one.status == status for one in sweep.trials)
        parts += [f"{count_text(number)} {status}"] if number else []
    return wording.DOT.join(parts)


def _table(sweep: Sweep, console: Console, num_rows: int) -> Table:
    metric = sweep.header.metric or "metric"
    table = plain_table()
    for name in ("trial", "status", metric, "time", "parameters"):
        table.add_column(name, no_wrap=True, overflow="ellipsis")
    ranking = sweep.ranking
    # Those that run are always seen, however many have ended.
    running = [one for one in ranking if one.status == "running"]
    others = [one for one in ranking if one.status != "running"]
    room = max(1, num_rows - len(running) - 1)
    for one in [*others[:room], *running]:
        style = "bold" if one.trial == sweep.best else ""
        share = "" if one.share is None else f" {percent_text(one.share, 0)}"
        value = "" if one.value is None else wording.metric_text(metric, one.value)
        time = "" if one.duration_s is None else seconds_text(one.duration_s)
        table.add_row(
            str(one.trial), Text(one.status + share, _STYLES[one.status]), value, time,
            _settings(one.parameters), style=style,
        )  # fmt: skip
    if len(others) > room:
        table.add_row("...", f"{count_text(len(others) - room)} more", "", "", "")
    return table


def _value_parts(sweep: Sweep, one: SweepTrial) -> list[str]:
    if one.finding is not None and one.status == "failed":
        return [one.finding.problem]
    metric = sweep.header.metric or "metric"
    return [] if one.value is None else [f"{metric} {wording.metric_text(metric, one.value)}"]


def _settings(parameters: dict[str, Value]) -> str:
    """Parameters as they are typed, with four figures, so that they fit."""
    return " ".join(
        f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={typed_value(value)}"
        for name, value in parameters.items()
    )
