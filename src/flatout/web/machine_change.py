"""Plans that a page applies or undoes: one at a time, and in the background."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

import msgspec

from flatout.errors import FlatoutError, UsageError
from flatout.schema.change_journal import StepOutcome
from flatout.schema.finding import Finding, finding_from, internal_error


class ChangeProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The last change that a page has started.

    goal: of the plan. is_undo: it is taken back. outcomes: of its steps; for an undo, what was
    restored, in words. problem: what ended it too early.
    """

    goal: str
    is_undo: bool = False
    outcomes: tuple[StepOutcome | str, ...] = ()
    problem: Finding | None = None
    is_running: bool = True


class MachineChanges:
    """Carries out one change after the other, each in a thread of its own.

    Ctrl-C does not end the server before the change has ended.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._latest: ChangeProgress | None = None

    def latest(self) -> ChangeProgress | None:
        """How far the last change is; None before the first."""
        with self._lock:
            return self._latest

    def begin(
        self,
        change: ChangeProgress,
        work: Callable[[], Iterable[StepOutcome | str]],
        after: Callable[[], object],
    ) -> None:
        """Begins a change.

        Args:
            change: its goal.
            work: makes the change while it is iterated over.
            after: called when it has ended.

        Raises:
            UsageError: changes-under-way.
        """
        with self._lock:
            if self._latest is not None and self._latest.is_running:
                raise UsageError(
                    "changes-under-way",
                    "another change to this machine has not ended yet.",
                    because=self._latest.goal,
                    fix="wait until it has ended, then try again",
                )
            self._latest = change
        threading.Thread(target=self._carry_out, args=(change, work, after)).start()

    def _carry_out(
        self,
        change: ChangeProgress,
        work: Callable[[], Iterable[StepOutcome | str]],
        after: Callable[[], object],
    ) -> None:
        outcomes: tuple[StepOutcome | str, ...] = ()
        problem = None
        try:
            for outcome in work():
                outcomes = (*outcomes, outcome)
                self._set(msgspec.structs.replace(change, outcomes=outcomes))
        except FlatoutError as error:
            problem = finding_from(error)
        # A page that says so is better than a thread that ends unseen.
        except Exception as error:  # noqa: BLE001
            problem = internal_error(error)
        after()
        self._set(msgspec.structs.replace(
            change, outcomes=outcomes, problem=problem, is_running=False,
        ))  # fmt: skip

    def _set(self, change: ChangeProgress) -> None:
        with self._lock:
            self._latest = change
