"""Live display of a training: redrawn on a terminal, occasional lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from flatout.cli.render import show, wording
from flatout.cli.render.progress import TrainingState
from flatout.schema.finding import Finding
from flatout.schema.machine import Machine
from flatout.schema.run import Run
from flatout.schema.run_lines import (
    EpochEnded,
    Fetched,
    Line,
    Profiled,
    RecipeSet,
    Started,
    Tuned,
    Validated,
    Warned,
)
from flatout.schema.units import bytes_text, seconds_text

_PLAIN_EVERY_S = 5.0
_LABEL_WIDTH = 10


class Display:
    """Shows the lines of a run as they arrive.

    Args:
        is_quiet: everything goes to stderr, since stdout carries a document.
        is_still: no live display, since only the start is watched.
    """

    def __init__(self, *, is_quiet: bool = False, is_still: bool = False) -> None:
        self._console = show.make_console(is_error=is_quiet)
        self._state = TrainingState()
        self._last_plain_s = 0.0
        self._recipe_text = ""
        is_alive = show.is_alive(self._console) and not is_still
        self._live = Live(console=self._console, auto_refresh=False) if is_alive else None

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop_moving()

    def open(self, run: Run, machine: Machine | None, *, is_replayed: bool = False) -> None:
        """The first lines: which machine, which experiment, which run.

        is_replayed: all lines of the run follow, so its recipe comes among them.
        """
        show.print_lines(self._console, [
            *show.machine_lines(machine),
            ("experiment", wording.experiment_text(run.header.spec)),
            ("run", f"{run.id}{wording.DOT}{wording.home_text(run.folder)}"),
        ])  # fmt: skip
        if run.recipe and not is_replayed:
            self._print_recipe(wording.recipe_text(run.recipe))

    def take(self, lines: Iterable[Line]) -> None:
        """Shows new lines; called with none it only keeps the display alive."""
        is_milestone = False
        for line in lines:
            self._state.take(line)
            self._announce(line)
            # If epochs end with a validation, one line shows both.
            is_milestone |= isinstance(line, Validated)
            is_milestone |= isinstance(line, EpochEnded) and not self._state.metrics
        if self._live:
            self._live.start()
            self._live.update(_picture(self._state), refresh=True)
        else:
            self._print_plainly(is_milestone)

    def print_line(self, text: str) -> None:
        """A message that stays."""
        self._console.print(text, style="yellow", soft_wrap=True)

    def fail(self, finding: Finding) -> None:
        """The last lines of a failed training."""
        self._stop_moving()
        show.print_finding(finding)

    def close(self, run: Run, split: dict[str, float]) -> None:
        """The last lines: what came out, where the time went, where it is kept, what to try."""
        self._stop_moving()
        self._console.print()
        show.print_lines(self._console, list(_closing_lines(run, split)))
        show.print_next_steps(self._console, run)

    def _stop_moving(self) -> None:
        if self._live:
            # What is left standing is the last picture, not that something is being loaded.
            if self._state.started is None:
                self._live.update(Group(), refresh=True)
            self._live.stop()

    def _announce(self, line: Line) -> None:
        if isinstance(line, Profiled):
            text = f"searching for at most {seconds_text(line.budget_s)} before the first step"
            show.print_lines(self._console, [("tuning", text)])
        elif isinstance(line, Tuned):
            show.print_lines(self._console, [
                ("tuned", wording.decision_text(line)), *wording.stay_lines(line.decision),
                *wording.unused_lines(line.decision), *wording.load_lines(line.decision),
            ])  # fmt: skip
        elif isinstance(line, RecipeSet) and line.adaptation is not None:
            show.print_lines(self._console, [wording.adaptation_line(line.adaptation)])
        elif isinstance(line, RecipeSet):
            self._print_recipe(wording.recipe_text(line.recipe))
        elif isinstance(line, Started):
            show.print_lines(self._console, [("data", wording.data_text(line))])
            if line.num_ranks > 1:
                text = f"{line.num_ranks}, each with its share of every batch"
                show.print_lines(self._console, [("ranks", text)])
            if line.resumed:
                show.print_lines(self._console, [("resumed", f"from step {line.step:,}")])
        elif isinstance(line, Warned):
            show.print_finding(line.finding, self._console)

    def _print_recipe(self, text: str) -> None:
        # A resume sets it once more.
        if text != self._recipe_text:
            show.print_lines(self._console, [("recipe", text)])
        self._recipe_text = text

    def _print_plainly(self, is_milestone: bool) -> None:
        state = self._state
        newest = state.fetched if state.started is None else state.progress
        if newest is None:
            return
        if not is_milestone and newest.at - self._last_plain_s < _PLAIN_EVERY_S:
            return
        self._last_plain_s = newest.at
        if isinstance(newest, Fetched):
            done_text = _download_text(newest.done_bytes, newest.total_bytes)
            text = f"downloading {newest.name}{wording.DOT}{done_text}"
        else:
            text = wording.DOT.join(
                filter(None, [state.position, state.steps, state.quality, state.speed])
            )
        self._console.print(text, soft_wrap=True)


def _picture(state: TrainingState) -> Group:
    """The live part of the display."""
    if state.started is None and state.fetched:
        done = state.fetched
        return Group(_download_row(done.name, done.done_bytes, done.total_bytes))
    if state.started is None:
        return Group(Text(f"{'':{_LABEL_WIDTH}}  loading torch and the experiment", "dim"))
    width = max(_LABEL_WIDTH, len(state.position))
    row = Table.grid(padding=(0, 2))
    row.add_row(
        Text(f"{state.position:<{width}}", "bold"),
        ProgressBar(total=1.0, completed=state.share or 0.0, width=24),
        Text(state.quality),
    )
    speed = wording.DOT.join(filter(None, [state.steps, state.speed]))
    return Group(Text(""), row, Text(f"{'':{width}}  {speed}"))


class Waiting:
    """Shows on a terminal what is being waited for, then disappears; silent elsewhere."""

    def __init__(self, text: str) -> None:
        console = show.make_console(is_error=True)
        is_alive = show.is_alive(console)
        self._status = console.status(Text(text, "dim"), spinner="line") if is_alive else None

    def __enter__(self) -> Waiting:
        if self._status:
            self._status.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def update(self, text: str) -> None:
        """Changes the text."""
        if self._status:
            self._status.update(Text(text, "dim"))
            self._status.start()

    def stop(self) -> None:
        """Removes the line, so that something can be printed."""
        if self._status:
            self._status.stop()


def show_download(name: str, steps: Iterable[tuple[str, int, int]]) -> None:
    """Shows the progress of a download on stderr; silent without a terminal."""
    console = show.make_console(is_error=True)
    is_alive = show.is_alive(console)
    with Live(console=console, transient=True) as live:
        for file, done_bytes, total_bytes in steps:
            if is_alive:
                live.update(_download_row(f"{name}/{file}", done_bytes, total_bytes))


def _download_row(name: str, done_bytes: int, total_bytes: int) -> Table:
    row = Table.grid(padding=(0, 2))
    row.add_row(
        Text(f"{'fetching':<{_LABEL_WIDTH}}", "bold"),
        ProgressBar(total=total_bytes or 1, completed=done_bytes, width=24),
        Text(f"{name}{wording.DOT}{_download_text(done_bytes, total_bytes)}"),
    )
    return row


def _download_text(done_bytes: int, total_bytes: int) -> str:
    return f"{bytes_text(done_bytes)} of {bytes_text(total_bytes)}"


def _closing_lines(run: Run, split: dict[str, float]) -> Iterable[tuple[str, str]]:
    yield run.status, wording.closing_text(run)
    if split and run.status != "running":
        whole = seconds_text(sum(split.values()))
        parts = [f"{name} {share}" for name, _, share in wording.shares(split)]
        yield "time", wording.DOT.join([whole, *parts[:5]])
    if run.checkpointing and run.status != "running":
        yield "checkpoints", wording.cost_text(run.checkpointing, is_short=True)
    if run.utilization is not None and run.status != "running":
        yield "speed", wording.speed_text(run)
    yield "folder", wording.home_text(run.folder)
