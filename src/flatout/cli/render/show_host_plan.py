"""Output of plans for driver, WSL, toolkit and containers, and of exported files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.text import Text

from flatout.cli.render.show import make_console, print_note
from flatout.cli.render.wording import home_text
from flatout.schema.plan_rows import SAFETY, step_rows
from flatout.setup.model.host_plan import HostPlan

_INDENT = "    "
_LABEL_WIDTH = 11


def print_host_plan(host_plan: HostPlan) -> None:
    """The steps, what each changes, and what to type for manual ones."""
    console = make_console()
    console.print(Text.assemble(("plan", "bold"), f"        {host_plan.plan.goal}"), soft_wrap=True)
    if host_plan.refusal:
        _print_row("not done", host_plan.refusal)
    if not host_plan.plan.steps:
        console.print(f"{_INDENT}nothing to do: already done")
    for number, (step, lines) in enumerate(
        zip(host_plan.plan.steps, host_plan.commands, strict=True), 1
    ):
        head = Text.assemble((f"{number:>2}  ", "bold"), f"{step.text} ({SAFETY[step.safety]})")
        console.print(head, soft_wrap=True)
        is_by_hand = step.safety == "manual" or bool(host_plan.files)
        for label, text in step_rows(step):
            # Manual commands are shown as typed there.
            if label == "runs" and is_by_hand:
                for line in lines:
                    _print_row("type", line)
            elif not (label == "undo" and is_by_hand):
                _print_row(label, text)


def print_written(paths: Sequence[Path], next_step: str) -> None:
    """Files that were written, and what to do with them."""
    for path in paths:
        print_note(f"wrote {home_text(str(path))}")
    print_note(f"next: {next_step}")


def _print_row(label: str, text: str) -> None:
    make_console().print(Text(f"{_INDENT}{label:<{_LABEL_WIDTH}}{text}"), soft_wrap=True)
