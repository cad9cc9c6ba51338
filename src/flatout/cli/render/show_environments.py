"""Environments: as they would be made, while they are made, and as they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from flatout.cli.render import wording
from flatout.cli.render.show import is_alive, make_console, print_lines, print_note
from flatout.cli.render.tables import plain_table
from flatout.schema.environment import InstallProgress, MadeEnvironment
from flatout.schema.units import bytes_text, seconds_text
from flatout.setup.model.environment_plan import EnvironmentPlan

_LABEL_WIDTH = 10
# Without a terminal, a download is reported each time this share more is done.
_PLAIN_SHARE = 0.1


def print_prepared(prepared: Iterable[EnvironmentPlan]) -> None:
    """Prints the planned work, environment by environment, with reasons."""
    for plan in prepared:
        console = make_console()
        console.print(Text.assemble((plan.name, "bold"), f"  {plan.framework}"), soft_wrap=True)
        if plan.state == "ready" and plan.environment:
            print_lines(console, [
                ("", f"exists, complete, tested {_proved_text(plan.environment)}"),
                *_numbered("note", plan.notes),
            ])  # fmt: skip
            continue
        source = f"from {plan.index}" if plan.index else "from pip's own index"
        parts = [f"Python {plan.python_version}", f"with {plan.installer}", source]
        steps = [(f"step {number}", step.text) for number, step in enumerate(plan.steps, 1)]
        print_lines(console, [
            ("", wording.DOT.join(parts)),
            *_numbered("why", plan.why),
            *_numbered("ruled out", plan.ruled_out),
            *_numbered("note", plan.notes),
            *steps,
            ("in", wording.home_text(plan.folder)),
            *(_costs(plan) if plan.total_bytes else ()),
        ])  # fmt: skip
        console.print()


def _costs(plan: EnvironmentPlan) -> list[tuple[str, str]]:
    takes = f"{bytes_text(plan.needed_bytes)} of {bytes_text(plan.free_bytes)} free"
    undo = "delete the folder" if plan.state == "bundle" else f"flatout setup --remove {plan.name}"
    return [("takes", f"{takes}{wording.DOT}no root needed"), ("undo", undo)]


def print_made(made: MadeEnvironment) -> None:
    """An environment that has just been made, and how to use it."""
    console = make_console()
    print_lines(console, [
        ("made", f"{made.name}{wording.DOT}{_framework_text(made)}{wording.DOT}"
                 f"Python {made.python_version}{wording.DOT}{bytes_text(made.size_bytes)}"),
        ("proved", wording.proof_text(made.proof)),
        *(("", check) for check in made.proof.checks),
    ])  # fmt: skip
    use = f"flatout train digits --env {made.name}" if made.spec.framework == "torch" else \
        wording.home_text(made.python)  # fmt: skip
    console.print(Text.assemble((f"{'use it':<12}", "bold"), use), soft_wrap=True)


def print_environments(environments: Sequence[MadeEnvironment]) -> None:
    """A line for each environment."""
    if not environments:
        print_note("no environments yet; create one: flatout setup")
        return
    table = plain_table("name", "framework", "python", "size", "proved", "in")
    for environment in environments:
        table.add_row(
            environment.name,
            _framework_text(environment),
            environment.python_version,
            bytes_text(environment.size_bytes),
            _proved_text(environment),
            wording.home_text(environment.folder),
        )
    make_console().print(table)


class Working:
    """Shows progress: one live line on a terminal, occasional lines elsewhere."""

    def __init__(self) -> None:
        self._console = make_console(is_error=True)
        self._live = (
            Live(console=self._console, transient=True, refresh_per_second=8)
            if is_alive(self._console)
            else None
        )
        self._shown_text = ""
        self._shown_bytes = 0

    def __enter__(self) -> Working:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live:
            self._live.stop()

    def update(self, progress: InstallProgress) -> None:
        """Something is being done, or is over."""
        label = progress.name or "flatout"
        if progress.is_over:
            size = f"{wording.DOT}{bytes_text(progress.done_bytes)}" if progress.done_bytes else ""
            print_lines(self._console, [(label, f"{progress.text}{size}")])
        elif self._live:
            self._live.update(_row(label, progress))
        elif self._is_news(progress):
            print_lines(self._console, [(label, _plain_text(progress))])

    def _is_news(self, progress: InstallProgress) -> bool:
        done, total = progress.done_bytes or 0, progress.total_bytes or 0
        is_new = progress.text != self._shown_text
        if not is_new and done < self._shown_bytes + max(_PLAIN_SHARE * total, 1):
            return False
        self._shown_text, self._shown_bytes = progress.text, done
        return True


def _row(label: str, progress: InstallProgress) -> Table:
    row = Table.grid(padding=(0, 2))
    bold = Text(f"{label:<{_LABEL_WIDTH}}", "bold")
    if not progress.total_bytes or progress.done_bytes is None:
        row.add_row(bold, Spinner("line", Text(progress.text, "dim")))
        return row
    bar = ProgressBar(total=progress.total_bytes, completed=progress.done_bytes, width=24)
    details = [_plain_text(progress)]
    if progress.bytes_per_s:
        left_s = (progress.total_bytes - progress.done_bytes) / progress.bytes_per_s
        details += [f"{bytes_text(progress.bytes_per_s)}/s", f"{seconds_text(max(1, left_s))} left"]
    row.add_row(bold, bar, wording.DOT.join(details))
    return row


def _plain_text(progress: InstallProgress) -> str:
    if not progress.total_bytes:
        return progress.text
    done = bytes_text(progress.done_bytes or 0)
    return f"{progress.text}{wording.DOT}{done} of {bytes_text(progress.total_bytes)}"


def _numbered(label: str, texts: Sequence[str]) -> list[tuple[str, str]]:
    return [(label if number == 0 else "", text) for number, text in enumerate(texts)]


def _framework_text(made: MadeEnvironment) -> str:
    return f"{made.spec.framework} {made.version} {made.cuda}"


def _proved_text(made: MadeEnvironment) -> str:
    proof = made.proof
    return f"{proof.at[:10]} on {proof.device_name or proof.device.upper()}"
