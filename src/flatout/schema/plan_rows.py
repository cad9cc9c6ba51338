"""Plans and their steps in words, line by line, for a terminal or a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flatout.schema.change_journal import Applied, FileKept, TreeKept
from flatout.schema.plan import (
    Block,
    Edit,
    InstallPackages,
    Move,
    PlanStep,
    RunProgram,
    Write,
    edit_text,
)
from flatout.schema.shell_quoting import home_text, powershell_line, typed_here
from flatout.schema.units import bytes_text, seconds_text

Row = tuple[str, str]

PLACES = {
    "here": "", "wsl": "in WSL", "linux": "in Linux", "windows": "in Windows",
    "powershell": "in PowerShell", "host": "on the host", "container": "in the container",
}  # fmt: skip
SAFETY = {"safe": "safe", "ask": "needs confirmation", "manual": "by hand"}


def step_rows(step: PlanStep) -> Iterator[Row]:
    """Rows on a step: its command or edit, its changes, its requirements, and how to undo it."""
    yield (
        "does" if not isinstance(step.action, RunProgram | InstallPackages) else "runs",
        action_text(step),
    )
    if isinstance(step.action, RunProgram | InstallPackages):
        yield "changes", step.changes
    needs = [
        "root" if step.needs_root else "",
        f"restarts {_RESTARTED[step.restarts]}" if step.restarts else "",
        "removes packages" if step.removes_packages else "",
        bytes_text(step.size_bytes) if step.size_bytes else "",
        f"about {seconds_text(step.time_s)}" if step.time_s else "",
        PLACES[step.where],
    ]
    if any(needs):
        yield "note", " · ".join(filter(None, needs))
    if not step.can_be_undone:
        yield "undo", "not possible"
    elif step.undo:
        yield "undo", f"flatout undo, which runs {_typed(step.undo, step)}"
    else:
        yield "undo", "flatout undo"


_RESTARTED = {"wsl": "WSL", "windows": "Windows", "linux": "the machine", "docker": "Docker"}


def action_text(step: PlanStep) -> str:
    """The action as it could be typed, or what is written where."""
    action = step.action
    if isinstance(action, InstallPackages):
        # In quotes, ~ would be no home.
        is_plain = " " not in action.python
        python = home_text(action.python) if is_plain else typed_here((action.python,))
        return f"{python} -m pip {typed_here(action.words)}"
    if isinstance(action, Edit | Block):
        return edit_text(action)
    if isinstance(action, Write):
        return f"writes {home_text(action.file)}"
    if isinstance(action, Move):
        return f"moves {home_text(action.source)} to {home_text(action.target)}"
    return _typed(action.argv, step)


def _typed(argv: Sequence[str], step: PlanStep) -> str:
    """A command of a step, for the shell of the place where it runs. Windows has no sudo."""
    if step.where in ("windows", "powershell"):
        return powershell_line(argv)
    return f"{'sudo ' if step.needs_root else ''}{typed_here(argv)}"


def undo_rows(applied: Applied) -> Iterator[Row]:
    """Rows on an undo: files, packages, names, commands; and the things that it cannot restore."""
    steps = applied.begun.plan.steps
    for line in applied.lines:
        if isinstance(line, FileKept):
            yield ("restores" if line.copy else "removes"), home_text(line.path)
        elif isinstance(line, TreeKept):
            yield "restores", f"the packages of {home_text(line.path)}"
    for number in applied.begun_steps:
        step = steps[number]
        if isinstance(step.action, Move):
            yield "moves", f"{home_text(step.action.target)} to {home_text(step.action.source)}"
        if isinstance(step.action, RunProgram) and step.action.makes:
            yield "removes", home_text(step.action.makes)
        if step.undo:
            yield "runs", _typed(step.undo, step)
        elif not step.can_be_undone:
            yield "leaves", step.text
