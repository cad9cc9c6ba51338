"""Plans and their steps in words, line by line, for whoever prints them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from flatout.cli.wording import DOT, home_text
from flatout.nouns.journal import Applied, FileKept, TreeKept
from flatout.nouns.plan import Block, Edit, Move, Packages, Run, Step, Write, edit_text
from flatout.nouns.units import bytes_text, seconds_text

Row = tuple[str, str]

PLACES = {
    "here": "", "wsl": "in WSL", "linux": "in Linux", "windows": "in Windows",
    "powershell": "in PowerShell", "host": "on the host", "container": "in the container",
}  # fmt: skip
SAFETY = {"safe": "safe", "ask": "asks first", "manual": "by hand"}


def step_rows(step: Step) -> Iterator[Row]:
    """What a step does: command or edit, what it changes, what it needs, how it is taken back."""
    yield ("does" if not isinstance(step.action, Run | Packages) else "runs", action_text(step))
    if isinstance(step.action, Run | Packages):
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
        yield "note", DOT.join(filter(None, needs))
    if not step.can_be_undone:
        yield "undo", "not possible"
    elif step.undo:
        yield "undo", f"flatout undo, which runs {shlex.join(step.undo)}"
    else:
        yield "undo", "flatout undo"


_RESTARTED = {"wsl": "WSL", "windows": "Windows", "linux": "the machine", "docker": "Docker"}


def action_text(step: Step) -> str:
    """The action as it could be typed, or what is written where."""
    action = step.action
    if isinstance(action, Packages):
        # In quotes, ~ would be no home.
        is_plain = " " not in action.python
        python = home_text(action.python) if is_plain else shlex.quote(action.python)
        return f"{python} -m pip {shlex.join(action.words)}"
    if isinstance(action, Edit | Block):
        return edit_text(action)
    if isinstance(action, Write):
        return f"writes {home_text(action.file)}"
    if isinstance(action, Move):
        return f"moves {home_text(action.source)} to {home_text(action.target)}"
    return f"{'sudo ' if step.needs_root else ''}{shlex.join(action.argv)}"


def undo_rows(applied: Applied) -> Iterator[Row]:
    """What an undo does: files, packages, names, commands; and what it cannot."""
    steps = applied.begun.plan.steps
    for line in applied.lines:
        if isinstance(line, FileKept):
            yield ("puts back" if line.copy else "removes"), home_text(line.path)
        elif isinstance(line, TreeKept):
            yield "puts back", f"the packages of {home_text(line.path)}"
    for number in applied.begun_steps:
        step = steps[number]
        if isinstance(step.action, Move):
            yield "moves", f"{home_text(step.action.target)} to {home_text(step.action.source)}"
        if isinstance(step.action, Run) and step.action.makes:
            yield "removes", home_text(step.action.makes)
        if step.undo:
            yield "runs", f"{'sudo ' if step.needs_root else ''}{shlex.join(step.undo)}"
        elif not step.can_be_undone:
            yield "leaves", step.text
