"""Carries out a plan, step by step. It does not ask: the caller has asked."""

from __future__ import annotations

import sys
from collections.abc import Generator
from pathlib import Path

from flatout.errors import FlatoutError
from flatout.schema.change_journal import How, PlanEnded, StepEnded, StepOutcome
from flatout.schema.finding import finding_from
from flatout.schema.plan import Move, Plan, RunProgram, files_of
from flatout.system import clock, edit_file, hardlink_copy
from flatout.system.atomic_files import FileLock
from flatout.system.changes.actions import carry_out, is_done, left_by
from flatout.system.store import change_journal
from flatout.system.store.change_journal import ChangeJournal


def apply(plan: Plan) -> Generator[StepOutcome]:
    """Carries out a plan while it is iterated over, and yields how each step went.

    Before the first change the journal says what is going to be done, and every file that the plan
    writes is kept. A step that is done already is passed over. The first that fails is the last:
    the others are "not started".

    Raises:
        UsageError: changes-under-way.
    """
    taken = change_journal.lock()
    application = _Application(plan, taken)
    try:
        yield from application.steps()
    finally:
        application.close()
        taken.release()


class _Application:
    """A plan that is being applied. Its entry in the journal is made where first needed."""

    def __init__(self, plan: Plan, lock: FileLock) -> None:
        self._plan = plan
        self._lock = lock
        self._journal: ChangeJournal | None = None

    def steps(self) -> Generator[StepOutcome]:
        for number in range(len(self._plan.steps)):
            outcome = self._step(number)
            yield outcome
            if outcome.how == "failed":
                for later in range(number + 1, len(self._plan.steps)):
                    yield self._outcome(later, "not started")
                break
        if self._journal is not None:
            self._journal.append(PlanEnded(at=clock.now_s(), digests=self._made()))

    def close(self) -> None:
        """Without a last line, a plan was interrupted."""
        if self._journal is not None:
            self._journal.close()

    def _step(self, number: int) -> StepOutcome:
        step = self._plan.steps[number]
        try:
            if is_done(step):
                return self._outcome(number, "skipped")
            journal = self._entry(number)
        except FlatoutError as error:
            return self._outcome(number, "failed", error)
        if step.restarts == "wsl" and sys.platform == "linux":
            # It ends this process, too: nothing could be reported afterwards.
            self._end(number, journal, "done")
            journal.append(PlanEnded(at=clock.now_s(), digests=self._made()))
        try:
            carry_out(number, step, journal)
        except FlatoutError as error:
            self._end(number, journal, "failed", error.problem)
            return self._outcome(number, "failed", error)
        self._end(number, journal, "done")
        if number in journal.trees:
            hardlink_copy.prune(Path(journal.trees[number].copy), Path(journal.trees[number].path))
        return self._outcome(number, "done")

    def _entry(self, number: int) -> ChangeJournal:
        """The journal's entry, made with all files kept that this step and later ones write."""
        if self._journal is None:
            self._journal = change_journal.begin(self._plan, self._lock)
            seen = set()
            for step in self._plan.steps[number:]:
                for path in map(edit_file.real_path, files_of(step.action)):
                    if path not in seen:
                        self._journal.keep_file(path, needs_root=step.needs_root)
                        seen.add(path)
        return self._journal

    def _end(
        self, number: int, journal: ChangeJournal, how: How, reason: str | None = None
    ) -> None:
        digests = left_by(number, self._plan.steps[number], journal)
        journal.append(StepEnded(step=number, how=how, reason=reason, digests=digests))

    def _outcome(self, number: int, how: How, error: FlatoutError | None = None) -> StepOutcome:
        return StepOutcome(
            step=number,
            text=self._plan.steps[number].text,
            how=how,
            problem=finding_from(error) if error else None,
            id=self._journal.id if self._journal else None,
        )

    def _made(self) -> dict[str, str]:
        """Digests of the folders that the plan has made, where they are now."""
        paths: dict[str, str] = {}
        for step in self._plan.steps:
            if isinstance(step.action, RunProgram) and step.action.makes:
                paths[step.action.makes] = step.action.makes
            elif isinstance(step.action, Move):
                paths = {
                    made: step.action.target if now == step.action.source else now
                    for made, now in paths.items()
                }
        return {
            now: hardlink_copy.tree_digest(Path(now))
            for now in paths.values()
            if Path(now).is_dir()
        }
