"""Output of `flatout doctor --fix` and `flatout undo`: plans, their outcome, restored things."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rich.text import Text

from flatout.cli.render.show import make_console, print_finding, print_note
from flatout.cli.render.tables import plain_table
from flatout.cli.render.wording import time_text
from flatout.doctor.model.fix_plan import ByHand, FixPlan, FixResult
from flatout.schema.change_journal import Applied, StepOutcome
from flatout.schema.plan_rows import PLACES, SAFETY, step_rows, undo_rows
from flatout.system.changes import api as changes_api

_INDENT = "    "
_LABEL_WIDTH = 11
_ROOM = 80 - len(_INDENT) - _LABEL_WIDTH
_HOW_STYLES = {"done": "green", "skipped": "", "failed": "bold red", "not started": "yellow"}
_HOW_WORDS = {"skipped": "already done"}


def wait_for_program() -> None:
    """Waits for a program that a killed flatout has left running, and says so."""
    for text in changes_api.wait_for_program():
        print_note(text)


def print_repairs(plans: Sequence[FixPlan], left: Sequence[ByHand]) -> None:
    """The plan: what would be done, step by step, and what the user must do."""
    console = make_console()
    if plans:
        console.print(Text("\nthe plan", "bold"))
    for number, repair in enumerate(plans, 1):
        line = Text.assemble((f"{number:>2}  ", "bold"), f"{repair.text} ({SAFETY[repair.safety]})")
        console.print(line, soft_wrap=True)
        _print_row("for", ", ".join(repair.rules))
        for step in repair.plan.steps:
            if len(repair.plan.steps) > 1:
                _print_row("step", step.text)
            for label, text in step_rows(step):
                _print_row(label, text, is_command=label in ("runs", "undo"))
    if left:
        console.print(Text("\nby hand", "bold"))
    for by_hand in left:
        console.print(Text.assemble((" -  ", "bold"), by_hand.fix.text), soft_wrap=True)
        _print_row("for", by_hand.rule)
        for number, command in enumerate(by_hand.fix.commands):
            system = PLACES[by_hand.fix.where] if number == 0 else ""
            label = "type" if number == 0 else ""
            _print_row(label, command + (f"    # {system}" if system else ""), is_command=True)


def print_preview(text: str) -> None:
    """The output of a command that previews a step."""
    console = make_console(is_error=True)
    for line in text.splitlines():
        console.print(f"{_INDENT}{line}", soft_wrap=True)


def print_outcome(outcome: StepOutcome) -> None:
    """The outcome of a step."""
    word = _HOW_WORDS.get(outcome.how, outcome.how)
    line = Text.assemble((f"{word:<15}", _HOW_STYLES[outcome.how]), outcome.text)
    make_console(is_error=True).print(line, soft_wrap=True)
    if outcome.problem:
        print_finding(outcome.problem)


def print_fix_result(result: FixResult, ids: Sequence[str]) -> None:
    """Prints the findings that are gone, remain or are new after the fix, and how to undo it."""
    console = make_console()
    console.print(Text("\nafter the fix", "bold"))
    for label, rules in (("gone", result.gone), ("still", result.remaining), ("new", result.new)):
        _print_row(label, ", ".join(rules) or "nothing")
    if ids:
        _print_row(
            "undo", " && ".join(f"flatout undo {id}" for id in reversed(ids)), is_command=True
        )


def print_changes(changes: Sequence[Applied]) -> None:
    """A line for each plan that was applied, the newest first."""
    if not changes:
        print_note("flatout has changed nothing on this machine")
        return
    table = plain_table("id", "when", "how", "what")
    for change in changes:
        table.add_row(change.id, time_text(change.begun.at), change.status, change.begun.plan.goal)
    make_console().print(table)


def print_undo(applied: Applied) -> None:
    """Prints the steps of an undo before it begins."""
    console = make_console()
    head = f"  {time_text(applied.begun.at)}  {applied.begun.plan.goal} ({applied.status})"
    console.print(Text.assemble((applied.id, "bold"), head), soft_wrap=True)
    for label, text in undo_rows(applied):
        _print_row(label, text, is_command=True)


def _print_row(label: str, text: str, *, is_command: bool = False) -> None:
    """A labeled text, over several lines on a terminal; a command is never broken."""
    console = make_console()
    is_whole = is_command or not console.file.isatty()
    parts = [text] if is_whole else textwrap.wrap(text, _ROOM, break_on_hyphens=False) or [""]
    for part in parts:
        console.print(Text(f"{_INDENT}{label:<{_LABEL_WIDTH}}{part}"), soft_wrap=True)
        label = ""
