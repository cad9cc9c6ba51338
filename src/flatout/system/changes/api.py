"""The verbs that change the machine, and undo that."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from flatout.errors import UsageError
from flatout.schema.change_journal import Applied, StepOutcome
from flatout.schema.plan import Plan
from flatout.system.changes import apply as applying
from flatout.system.changes import undo as undoing
from flatout.system.changes.actions import shown
from flatout.system.changes.undo import Obstacle
from flatout.system.store import change_journal


def apply(plan: Plan) -> Generator[StepOutcome]:
    """Carries out a plan, step by step, while it is iterated over; asks nothing.

    Raises:
        UsageError: changes-under-way.
    """
    return applying.apply(plan)


def previews(plan: Plan) -> Iterator[str]:
    """The output of commands that preview a step, such as those of apt or WSL."""
    return filter(None, map(shown, plan.steps))


def changes() -> list[Applied]:
    """All plans that were applied here, the newest first."""
    return change_journal.entries()[::-1]


def wait_for_program() -> Iterator[str]:
    """Waits while a program that a killed flatout had started still runs; yields for what first.

    `apply` and `undo` wait for it, too, but say nothing.

    Raises:
        UsageError: changes-under-way, where it runs for longer than half a minute.
    """
    return change_journal.wait_for_program()


def change_to_undo(id: str | None) -> Applied:
    """The change of that id, else the newest that is not undone.

    Raises:
        UsageError: no-such-change, nothing-to-undo.
    """
    if id is not None:
        return change_journal.entry(id)
    newest = next((change for change in changes() if change.status != "undone"), None)
    if newest is None:
        raise UsageError(
            "nothing-to-undo",
            "nothing to undo: flatout has changed nothing, or everything is already undone.",
            fix="flatout undo --list",
        )
    return newest


def changed_since(applied: Applied) -> tuple[Obstacle, ...]:
    """Later changes by others, which an undo would overwrite."""
    return undoing.obstacles(applied)


def changed_files_since(applied: Applied) -> tuple[Obstacle, ...]:
    """The same for files alone, which takes a moment."""
    return tuple(undoing.changed_files(applied))


def compares_folders(applied: Applied) -> bool:
    """Whether `changed_since` also looks through folders, which may take long."""
    return undoing.compares_folders(applied)


def undo(applied: Applied, *, is_forced: bool = False) -> Generator[str]:
    """Takes a change back while it is iterated over; yields what was put back, in words.

    Raises:
        UsageError: undone-already, changed-since, changes-under-way.
        RunFailed: step-failed.
    """
    return undoing.undo(applied, is_forced=is_forced)
