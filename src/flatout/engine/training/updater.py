"""Runs an epoch's updates, and retries one with smaller micro-batches after out-of-memory.

An update that fails before the weights are touched leaves nothing behind: gradients are dropped,
generators, buffers and plain attributes restored (`rng_buffer_snapshot.py`), and the same batch is
repeated. Once the optimizer step has started, what it has changed is unknown: the run rolls back to
its last checkpoint, which costs nothing in the steps that succeed, and is exact for any optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
from torch import Tensor

from flatout.engine.feed.cached_feed import problem_of
from flatout.engine.feed.feed import MicroBatch
from flatout.engine.ranks.process_group import MultiRank
from flatout.engine.ranks.protocol import OomReport, StepRequests
from flatout.engine.runtime.error_map import CaptureBroken, compiling_failure, lost_in_capture
from flatout.engine.runtime.gpu_memory import release_memory
from flatout.engine.runtime.oom import OutOfMemory, as_out_of_memory, free_after_oom
from flatout.engine.runtime.step_timer import StepTimer
from flatout.engine.session.session import Session
from flatout.engine.session.step_kinds import new_step
from flatout.engine.step.captured_step import CapturedStep
from flatout.engine.step.cuda_graphs import not_captured
from flatout.engine.training.flop_count import FlopCount
from flatout.engine.training.oom_recovery import OomRecovery
from flatout.engine.training.rng_buffer_snapshot import StepSnapshot
from flatout.errors import RunFailed
from flatout.schema.recipe import Choice, Recipe

UpdateResult = tuple[Tensor | dict[str, Tensor], int]


class Rollback(Exception):
    """The run is to continue from its last checkpoint; its history says with what recipe."""


class StepRunner:
    """Makes updates.

    is_whole: weights, generators and buffers are those after an update: they can be saved.
    flop_count: of such an update.
    detect_changes: finds out which generators, buffers and plain attributes the updates move.
    settle: takes plain attributes of the model that were changed between updates as they are.

    Args:
        session: what is trained.
        timer: notified when each part of an update ends.
        oom_recovery: decides what is done where memory is short.
        requests: this rank's requests after an update, by the number of updates made by then.
    """

    def __init__(
        self,
        session: Session,
        timer: StepTimer,
        oom_recovery: OomRecovery,
        requests: Callable[[int], StepRequests],
    ) -> None:
        self._session = session
        self._timer = timer
        self._oom_recovery = oom_recovery
        self._step = new_step(session, timer)
        self._has_reported_problem = False
        self._snapshot = StepSnapshot(session.model, session.device)
        self.detect_changes, self.settle = self._snapshot.detect_changes, self._snapshot.settle
        self._updates: Iterator[list[MicroBatch]] = iter(())
        self._requests = requests
        self.flop_count = FlopCount(session)
        if self._step.exchange is not None:
            position = session.position
            self._step.exchange.listen(lambda: requests(position.step + 1))
        self.is_whole = True

    def begin_epoch(self) -> None:
        """The following updates are those of the position's epoch, from the position on."""
        position = self._session.position
        self._updates = self._session.feed.updates(position.epoch, position.update)

    def make(self) -> UpdateResult | OutOfMemory | None:
        """Makes the next update and gives its loss and samples; None where the epoch is over.

        Where memory is short for it, that is what is given, and everything is as it was before:
        `take_less` and another call make the same update from less.

        Raises:
            Rollback: what was being done cannot be repeated here.
            RunFailed: out-of-memory, gpu-state-lost, compiling-failed.
        """
        if self._step.problem is not None and not self._has_reported_problem:
            self._has_reported_problem = True
            _report_uncaptured(self._step.problem, self._session, self._oom_recovery)
        if self._session.position.step >= self._oom_recovery.growth_after:
            self._take_more()
        try:
            return self._make_update()
        except CaptureBroken as error:
            raise _lost_in_capture(
                error, self._oom_recovery, self._session.position.step
            ) from error
        except Exception as error:
            oom, failure = as_out_of_memory(error), compiling_failure(error)
            if oom is None and failure is None:
                raise
        # Outside of `except`: nothing holds the tensors of what has failed any more.
        if failure is None:
            assert oom is not None
            can_repeat = self._restore(oom)
            return agreed(self._session, self._oom_recovery, oom, "update", can_repeat=can_repeat)
        is_in_place = self._restore()
        step = self._session.position.step
        recipe = self._oom_recovery.uncompiled(failure, step, is_in_place=is_in_place)
        if not is_in_place:
            raise Rollback
        self._go_on_under(recipe)
        return self.make()

    def _make_update(self) -> UpdateResult | None:
        update = next(self._updates, None)
        self._timer.mark("data")
        _report_uncached(self._session, self._oom_recovery)
        if update is None:
            return None
        self.flop_count.see(update)
        if not self._step.enqueue(update):
            self._step.flush()
            self._timer.begin_step()
            self._snapshot.keep()
            self.is_whole = False
        loss = self._step.run(update)
        self.is_whole = True
        if self._step.exchange is not None:
            return loss, self._step.exchange.num_samples
        return loss, update[0][1] if len(update) == 1 else sum(size for _, size in update)

    def flush(self, *, is_waiting: bool = False) -> None:
        """Makes what was laid aside: after it, weights and losses are those of all updates.

        Args:
            is_waiting: what the ranks have sent each other has arrived, too: who reads a number
                that is computed from it would wait for it unwatched.

        Raises:
            RunFailed: rank-lost.
        """
        self._step.flush()
        ranks = self._session.ranks
        if is_waiting and isinstance(ranks, MultiRank):
            ranks.connection.tensors.settle()

    def heard(self) -> StepRequests:
        """The requests after the newest update: of several ranks, those of any."""
        if self._step.exchange is not None:
            return self._step.exchange.heard
        return self._requests(self._session.position.step)

    def _restore(self, oom: OutOfMemory | None = None) -> bool:
        """Rolls everything back to before the interrupted update.

        Returns:
            False where that is not known, or the data cannot be read again.
        """
        session, position = self._session, self._session.position
        is_untouched = self.is_whole or not self._step.has_begun
        can_repeat = is_untouched and session.feed.can_go_on(position.update)
        if self._session.sharding is not None:
            # Of the blocks some are gathered and some are not, on each rank others.
            can_repeat = False
        if oom is not None:
            await_device(self._session, self._oom_recovery, oom)
        if not self.is_whole:
            self._step.forget()
        release_memory()
        if can_repeat and not self.is_whole:
            self.is_whole = can_repeat = self._snapshot.restore()
        return can_repeat

    def take_less(self, oom: OutOfMemory) -> None:
        """Takes less memory from the next update on.

        Raises:
            Rollback: what was already read cannot be split into smaller micro-batches.
        """
        position = self._session.position
        can_go_on = self._session.feed.can_go_on(position.update)
        await_device(self._session, self._oom_recovery, oom)
        release_memory()
        recipe = self._oom_recovery.less(oom, position.step, is_in_place=can_go_on)
        if not can_go_on:
            raise Rollback
        self._go_on_under(recipe)

    def speed_up(self, oom: OutOfMemory) -> None:
        """Uses less memory after the driver has moved some of it; warns if that is impossible.

        Raises:
            Rollback: as `take_less`.
        """
        try:
            self.take_less(oom)
        except RunFailed as error:
            if error.rule != "out-of-memory":
                raise
            self._oom_recovery.warn(self._session.position.step, error)

    def renew(self, is_refrozen: bool) -> None:
        """After hooks: what is in a graph, or compiled in, may be another number now.

        Args:
            is_refrozen: other weights may be trained, too. (Several ranks find that out.)
        """
        self.settle()
        session = self._session
        if session.loss is not None:
            session.loss.renew(session.recipe)
        if isinstance(self._step, CapturedStep):
            self._step.is_outdated = True
        elif is_refrozen and session.ranks.size == 1:
            # An optimizer's step is prepared for the weights that it has seen.
            self._step = new_step(session, self._timer)

    def _take_more(self) -> None:
        position = self._session.position
        # Not between epochs: whether the validation there has still been made under the recipe
        # before is not in the history.
        if position.update and self._session.feed.can_go_on(position.update):
            self._go_on_under(self._oom_recovery.more(position.step))

    def _go_on_under(self, recipe: Recipe) -> None:
        session, position = self._session, self._session.position
        self._step.flush()
        is_captured = session.recipe.capture.value == "step"
        session.adapt(recipe)
        if is_captured:
            # What was recorded is of another form now.
            self._step = new_step(session, self._timer)
        self._updates = session.feed.again(position.epoch, position.update)


def await_device(session: Session, oom_recovery: OomRecovery, oom: OutOfMemory) -> None:
    """Waits for the device. If it is lost, a resume finds the remedy in the history.

    Raises:
        RunFailed: gpu-state-lost.
    """
    try:
        free_after_oom(session.device)
    except RunFailed as error:
        oom_recovery.lost_here(error, oom, session.position.step)
        raise


def agreed(
    session: Session, oom_recovery: OomRecovery, oom: OutOfMemory, phase: str, *, can_repeat: bool
) -> OutOfMemory:
    """The ranks' common reaction to out-of-memory: repeat what each was doing, or go back.

    Raises:
        Rollback: one of them cannot repeat it, or they were not doing the same.
        RunFailed: out-of-memory.
    """
    step = session.position.step
    if isinstance(session.ranks, MultiRank) and session.recipe.exchange.value == "plain":
        raise RunFailed(
            "out-of-memory",
            "not enough memory for this step on this rank.",
            because=f"{oom.because}; with exchange=plain the ranks cannot agree to use less",
            fix="resume with --use exchange=agreed, or with --use micro_batch_size=N",
        )
    own = OomReport(shortage=oom, step=step, place=phase, can_repeat=can_repeat)
    agreement = session.ranks.agree_on_oom(own)
    if not agreement.can_repeat:
        oom_recovery.less(agreement.shortage, agreement.step, is_in_place=False)
        raise Rollback
    return agreement.shortage


def _report_uncaptured(problem: str, session: Session, oom_recovery: OomRecovery) -> None:
    """Reports why updates are not made in graphs, although the recipe says so.

    Raises:
        UsageError: step-not-captured, where the user has set it.
    """
    error = not_captured(problem, "leave it out, or resume with --use capture=off")
    if session.recipe.capture.origin == "yours":
        raise error
    oom_recovery.warn(session.position.step, error)


def _lost_in_capture(error: CaptureBroken, oom_recovery: OomRecovery, step: int) -> RunFailed:
    """Makes the resuming process work without graphs, from the last checkpoint."""
    lost = lost_in_capture(error)
    oom_recovery.without("uncaptured", lost, step)
    return lost


def _report_uncached(session: Session, oom_recovery: OomRecovery) -> None:
    """Logs once that a loader reads samples that the recipe wanted cached."""
    problem = problem_of(session.feed)
    if problem is not None and session.recipe.data_path.value == "cached":
        oom_recovery.without("uncached", problem, session.position.step)
        value: Choice[str] = Choice(
            value="loader", why="its samples are different each time they are read"
        )
        session.recipe = msgspec.structs.replace(session.recipe, data_path=value)
