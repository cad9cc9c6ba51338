"""An epoch's updates, one after another; one that memory does not suffice for is made again from
less of it.

An update that is broken off before the weights are touched leaves nothing behind: gradients are
forgotten, generators and buffers put back (`kept.py`), and the same batch is repeated. Once the
optimizer has begun, what it has changed is not known: the run goes back to its last checkpoint,
which costs nothing in the steps that succeed, and is exact for any optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
from torch import Tensor

from flatout.engine.cached_feed import problem_of
from flatout.engine.failures import compiling_failure, lost_in_capture
from flatout.engine.feed import MicroBatch
from flatout.engine.graphs import CaptureBroken
from flatout.engine.group import Group
from flatout.engine.kept import Kept
from flatout.engine.memory import release_memory
from flatout.engine.meter import Meter
from flatout.engine.ranks import Trouble, Wishes
from flatout.engine.relief import Relief
from flatout.engine.session import Session
from flatout.engine.shortage import Shortage, settle, shortage_of
from flatout.engine.steps import new_step
from flatout.errors import RunFailed, UsageError
from flatout.nouns.recipe import Choice, Recipe

Made = tuple[Tensor | dict[str, Tensor], int]


class GoBack(Exception):
    """The run is to go on from its last checkpoint; its history says with what recipe."""


class UpdateMaker:
    """Makes updates.

    is_whole: weights, generators and buffers are those after an update: they can be saved.

    Args:
        session: what is trained.
        meter: told when each part of an update ends.
        relief: decides what is done where memory is short.
        wishes: what this rank wishes after an update, by the number of updates made by then.
    """

    def __init__(
        self,
        session: Session,
        meter: Meter,
        relief: Relief,
        wishes: Callable[[int], Wishes],
    ) -> None:
        self._session = session
        self._meter = meter
        self._relief = relief
        self._step = new_step(session, meter)
        self._has_told_problem = False
        self._kept = Kept(session.model, session.device)
        self._updates: Iterator[list[MicroBatch]] = iter(())
        self._wishes = wishes
        if self._step.exchange is not None:
            position = session.position
            self._step.exchange.listen(lambda: wishes(position.step + 1))
        self.is_whole = True

    def begin_epoch(self) -> None:
        """The updates that follow are those of the epoch that the position tells, from there on."""
        position = self._session.position
        self._updates = self._session.feed.updates(position.epoch, position.update)

    def make(self) -> Made | Shortage | None:
        """Makes the next update and gives its loss and samples; None where the epoch is over.

        Where memory is short for it, that is what is given, and everything is as it was before:
        `take_less` and another call make the same update from less.

        Raises:
            GoBack: what was being done cannot be repeated here.
            RunFailed: out-of-memory, gpu-state-lost, compiling-failed.
        """
        if self._step.problem is not None and not self._has_told_problem:
            self._has_told_problem = True
            _tell_uncaptured(self._step.problem, self._session, self._relief)
        if self._session.position.step >= self._relief.growth_after:
            self._take_more()
        try:
            return self._made()
        except CaptureBroken as error:
            raise _lost_in_capture(error, self._relief, self._session.position.step) from error
        except Exception as error:
            shortage, failure = shortage_of(error), compiling_failure(error)
            if shortage is None and failure is None:
                raise
        # Outside of `except`: nothing holds the tensors of what has failed any more.
        if failure is None:
            assert shortage is not None
            can_repeat = self._put_back(shortage)
            return agreed(self._session, self._relief, shortage, "update", can_repeat=can_repeat)
        is_in_place = self._put_back()
        step = self._session.position.step
        recipe = self._relief.uncompiled(failure, step, is_in_place=is_in_place)
        if not is_in_place:
            raise GoBack
        self._go_on_under(recipe)
        return self.make()

    def _made(self) -> Made | None:
        update = next(self._updates, None)
        self._meter.mark("data")
        _tell_uncached(self._session, self._relief)
        if update is None:
            return None
        if not self._step.prepare(update):
            self._step.finish()
            self._meter.begin_step()
            self._kept.keep()
            self.is_whole = False
        loss = self._step.run(update)
        self.is_whole = True
        if self._step.exchange is not None:
            return loss, self._step.exchange.num_samples
        return loss, update[0][1] if len(update) == 1 else sum(size for _, size in update)

    def finish(self) -> None:
        """Makes what was laid aside: after it, weights and losses are those of all updates."""
        self._step.finish()

    def heard(self) -> Wishes:
        """What is wished after the newest update: of several ranks, by any of them."""
        if self._step.exchange is not None:
            return self._step.exchange.heard
        return self._wishes(self._session.position.step)

    def _put_back(self, shortage: Shortage | None = None) -> bool:
        """Brings everything to where it was before the update that was broken off.

        Returns:
            False where that is not known, or the data cannot be had again.
        """
        session, position = self._session, self._session.position
        is_untouched = self.is_whole or not self._step.has_begun
        can_repeat = is_untouched and session.feed.can_go_on(position.update)
        if self._session.sharding is not None:
            # Of the blocks some are put together and some are not, on each rank others.
            can_repeat = False
        if shortage is not None:
            await_device(self._session, self._relief, shortage)
        if not self.is_whole:
            self._step.forget()
        release_memory()
        if can_repeat and not self.is_whole:
            self.is_whole = can_repeat = self._kept.put_back()
        return can_repeat

    def take_less(self, shortage: Shortage) -> None:
        """Takes less memory from the next update on.

        Raises:
            GoBack: what was read already cannot be had again in smaller micro-batches.
        """
        position = self._session.position
        can_go_on = self._session.feed.can_go_on(position.update)
        await_device(self._session, self._relief, shortage)
        release_memory()
        recipe = self._relief.less(shortage, position.step, is_in_place=can_go_on)
        if not can_go_on:
            raise GoBack
        self._go_on_under(recipe)

    def speed_up(self, shortage: Shortage) -> None:
        """Takes less memory where the driver has moved some of it; tells where that cannot be.

        Raises:
            GoBack: as `take_less`.
        """
        try:
            self.take_less(shortage)
        except RunFailed as error:
            if error.rule != "out-of-memory":
                raise
            self._relief.warn(self._session.position.step, error)

    def look(self) -> None:
        """Finds out which generators and buffers the updates move."""
        self._kept.look()

    def _take_more(self) -> None:
        position = self._session.position
        # Not between epochs: whether the validation there has still been made under the recipe
        # before is nowhere in the history.
        if position.update and self._session.feed.can_go_on(position.update):
            self._go_on_under(self._relief.more(position.step))

    def _go_on_under(self, recipe: Recipe) -> None:
        session, position = self._session, self._session.position
        self._step.finish()
        is_captured = session.recipe.capture.value == "step"
        session.adapt(recipe)
        if is_captured:
            # What was recorded is of another form now.
            self._step = new_step(session, self._meter)
        self._updates = session.feed.again(position.epoch, position.update)


def await_device(session: Session, relief: Relief, shortage: Shortage) -> None:
    """Waits for the device. If it is lost, a resume finds in the history what is to be done.

    Raises:
        RunFailed: gpu-state-lost.
    """
    try:
        settle(session.device)
    except RunFailed as error:
        relief.lost_here(error, shortage, session.position.step)
        raise


def agreed(
    session: Session, relief: Relief, shortage: Shortage, place: str, *, can_repeat: bool
) -> Shortage:
    """What all ranks do about want of memory: repeat what each was doing, or go back.

    Raises:
        GoBack: one of them cannot repeat it, or they were not doing the same.
        RunFailed: out-of-memory.
    """
    step = session.position.step
    if isinstance(session.ranks, Group) and session.recipe.exchange.value == "plain":
        raise RunFailed(
            "out-of-memory",
            "there is not enough memory for this step on this rank.",
            because=f"{shortage.because}; with exchange=plain the ranks do not agree to take less",
            fix="resume with --use exchange=agreed, or with --use micro_batch_size=N",
        )
    own = Trouble(shortage=shortage, step=step, place=place, can_repeat=can_repeat)
    told = session.ranks.settle(own)
    if not told.can_repeat:
        relief.less(told.shortage, told.step, is_in_place=False)
        raise GoBack
    return told.shortage


def _tell_uncaptured(problem: str, session: Session, relief: Relief) -> None:
    """Tells why updates are not made in graphs, though the recipe says so.

    Raises:
        UsageError: step-not-captured, where it was a person who has set it.
    """
    error = UsageError(
        "step-not-captured",
        "the step cannot be made in a CUDA graph.",
        because=problem,
        fix="leave it out, or resume with --use capture=off",
    )
    if session.recipe.capture.origin == "yours":
        raise error
    relief.warn(session.position.step, error)


def _lost_in_capture(error: CaptureBroken, relief: Relief, step: int) -> RunFailed:
    """Has the process that goes on do without graphs, from the last checkpoint."""
    lost = lost_in_capture(error)
    relief.without("uncaptured", lost, step)
    return lost


def _tell_uncached(session: Session, relief: Relief) -> None:
    """Tells it once where a loader reads samples that were to be kept."""
    problem = problem_of(session.feed)
    if problem is not None and session.recipe.data_path.value == "cached":
        relief.without("uncached", problem, session.position.step)
        value: Choice[str] = Choice(value="loader", why="its samples are drawn anew each time")
        session.recipe = msgspec.structs.replace(session.recipe, data_path=value)
