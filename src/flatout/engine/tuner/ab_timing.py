"""Two ways of making the same updates, measured in turns until the difference is clear."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from flatout.engine.feed.cached_feed import problem_of
from flatout.engine.feed.feed import MicroBatch
from flatout.engine.runtime.gpu_memory import MemoryWatch
from flatout.engine.runtime.step_timer import Losses, StepTimer
from flatout.engine.session.session import Session
from flatout.engine.step.captured_step import CapturedStep
from flatout.engine.step.cuda_graphs import not_captured
from flatout.engine.step.step import EagerStep
from flatout.errors import RunFailed
from flatout.schema.tuning import Interval
from flatout.system.clock import elapsed_s
from flatout.tune.problem import is_slow
from flatout.tune.statistics import speedup

# Shorter blocks would measure the clock and the scheduler.
_BLOCK_S = 0.04

# The first update makes the optimizer's state, the second prepares its kernel, the third is like
# all that follow.
_NUM_WARM_UPS = 3

# Fewer say nothing with confidence, and building and warming up has taken longer than they do.
_LEAST_PAIRS = 4
_MOST_PAIRS = 30

# The error of a single pair is unknown.
_FEWEST_PAIRS = 2

# Of updates that take long there is no time for more, and there is little noise in them.
_LEAST_SLOW_PAIRS = 3

# A candidate that is this much slower is not measured on.
_HOPELESS = 1 / 3

# Where the interval is this narrow, or on one side of no difference, more pairs add little.
_NARROW = 0.01

# One side: beyond these, more pairs would no longer change the decision. More is required of a gain
# than of a loss, because a gain is kept. A wide interval is measured on even there: the ladder
# compares speed-ups with each other.
_CLEAR_GAIN, _CLEAR_LOSS = 1.05, 0.97
_WIDE = 0.2


class Runner(Protocol):
    """Something that makes updates."""

    def run(self, num_updates: int) -> int:
        """Makes so many updates and gives the number of samples in them."""
        ...

    def close(self) -> None:
        """Ends what reads ahead."""
        ...


class RecipeLoop:
    """flatout's own loop under a recipe, run a few updates at a time, without validation.

    newest: the micro-batches of the newest update, as the feed gave them. step: makes updates.

    Args:
        session: live objects under the recipe.
        step: carries out its updates.
        timer: notified when the data is there.
    """

    def __init__(self, session: Session, step: EagerStep | CapturedStep, timer: StepTimer) -> None:
        self._session = session
        self.step = step
        self._timer = timer
        self._updates: Iterator[Any] = iter(())
        self.newest: list[MicroBatch] = []
        self._losses = Losses(session.device)
        self._every_step = session.learning_rates.are_per_step
        self._is_finite = True
        session.model.train()

    def run(self, num_updates: int) -> int:
        """See Runner.

        Raises:
            UsageError: step-not-captured, where that is requested; data-cannot-be-cached.
        """
        num_samples = 0
        position = self._session.position
        self._timer.mark("other")
        for _ in range(num_updates):
            update = next(self._updates, None)
            if update is None:
                self._updates = self._session.feed.updates(position.epoch, 0)
                position.epoch += 1
                update = next(self._updates)
            self._timer.mark("data")
            self.newest = update
            loss = self.step.run(update)
            size = sum(size for _, size in update)
            self._losses.add(loss, size)
            if self._every_step:
                self._every_step = stepped(self._session.learning_rates.after_update)
            num_samples += size
        self.step.flush()
        # What takes turns with it may want other threads.
        self._session.placement.release()
        self._take_losses(is_waiting=False)
        uncached = problem_of(self._session.feed)
        if uncached is not None:
            # Read by a loader, it is as quick as without this setting.
            raise uncached
        if self.step.problem is not None:
            # Made without graphs, it is as quick as without this setting.
            raise not_captured(self.step.problem)
        return num_samples

    @property
    def model(self) -> nn.Module:
        """The weights that the updates change."""
        return self._session.model

    def has_finite_losses(self) -> bool:
        """Whether no loss so far was NaN or infinite; waits for the last ones."""
        self._take_losses(is_waiting=True)
        return self._is_finite

    def _take_losses(self, *, is_waiting: bool) -> None:
        losses = self._losses.take(is_waiting=is_waiting)
        self._is_finite &= all(math.isfinite(loss) for loss, _ in losses)

    def close(self) -> None:
        """See Runner."""
        self._session.close()


def stepped(step: Callable[[], object]) -> bool:
    """Steps a schedule; False once it has come to its end: a trial may outlast a short run."""
    try:
        step()
    except (ValueError, RunFailed):
        return False
    return True


@dataclass(frozen=True, kw_only=True)
class TimedBlock:
    """Some updates made one after another: how long they took, and the samples in them.

    excess_bytes: what was taken of the GPU beyond what was free, where its driver allows that.
    """

    took_s: float
    num_samples: int
    excess_bytes: int = 0

    @property
    def per_sample_s(self) -> float:
        """Seconds per sample."""
        return self.took_s / self.num_samples


class TimedContestant(Protocol):
    """A contestant whose updates can be timed, here or in another process."""

    def timed(self, num_updates: int) -> TimedBlock:
        """Makes so many updates, the device's work included."""
        ...


@dataclass(frozen=True, kw_only=True)
class TimedLoop:
    """A runner with the settings of the process under which it runs.

    num_ahead: batches that its loader's workers read while the other one is measured: they are
    used up first, or reading would seem to cost nothing. watch: of the GPU's memory.
    """

    runner: Runner
    settings: Callable[[], AbstractContextManager[Any]]
    device: torch.device
    num_ahead: int = 0
    watch: MemoryWatch | None = None

    def timed(self, num_updates: int) -> TimedBlock:
        """See TimedContestant."""
        with self.settings():
            if self.num_ahead:
                self.runner.run(self.num_ahead)
            _wait_for(self.device)
            begin_s = elapsed_s()
            num_samples = self.runner.run(num_updates)
            _wait_for(self.device)
            took_s = elapsed_s() - begin_s
        excess = self.watch.excess_bytes() if self.watch is not None else 0
        return TimedBlock(took_s=took_s, num_samples=num_samples, excess_bytes=excess)


@dataclass(frozen=True, kw_only=True)
class SpeedComparison:
    """The candidate's speed-up over the incumbent, and the samples per second of both.

    excess_bytes: what the candidate took of the GPU beyond what was free.
    """

    speedup: Interval
    incumbent_samples_per_s: float
    samples_per_s: float
    excess_bytes: int = 0


def compared(
    incumbent: TimedContestant,
    candidate: TimedContestant,
    *,
    limit_s: float,
    ends_at_s: float = math.inf,
) -> SpeedComparison:
    """Measures two contestants in turns, until the difference is clear or the time is over.

    Args:
        incumbent: what the candidate is compared with.
        candidate: its updates are the same ones; it has made some, so that its effect was seen.
        limit_s: no further pair is started after this; at least four are made, or three of updates
            that take long, unless the first two agree that the candidate is much slower.
        ends_at_s: by the clock, when the search ends: then two pairs have to do.

    Raises:
        RunFailed: search-out-of-time, where there was no time for two.
    """
    begin_s = elapsed_s()
    first_s = incumbent.timed(1).took_s
    are_slow = is_slow(first_s, limit_s)
    num_updates = 1
    if not are_slow:
        num_warm_ups = _NUM_WARM_UPS if limit_s > 1 else _NUM_WARM_UPS - 1
        candidate.timed(num_warm_ups)
        incumbent.timed(num_warm_ups - 1)
        num_updates = _block_updates(incumbent.timed(1).took_s)
    least = _LEAST_SLOW_PAIRS if are_slow else _LEAST_PAIRS
    pairs: list[tuple[float, float]] = []
    excess = 0
    gc.collect()
    for number in range(_MOST_PAIRS):
        if elapsed_s() > ends_at_s:
            if len(pairs) >= _FEWEST_PAIRS:
                break
            raise out_of_time()
        order = (incumbent, candidate) if number % 2 == 0 else (candidate, incumbent)
        blocks = [contestant.timed(num_updates) for contestant in order]
        first, second = blocks if number % 2 == 0 else reversed(blocks)
        pairs.append((first.per_sample_s, second.per_sample_s))
        excess = max(excess, second.excess_bytes)
        is_over = elapsed_s() - begin_s > limit_s
        # In every pair: in one, another program may have had the core.
        if len(pairs) >= 2 and max(before / after for before, after in pairs) < _HOPELESS:
            break
        if len(pairs) >= least and (is_over or _is_clear(speedup(pairs))):
            break
    firsts, seconds = zip(*pairs, strict=True)
    return SpeedComparison(
        speedup=speedup(pairs),
        incumbent_samples_per_s=1 / _median(firsts),
        samples_per_s=1 / _median(seconds),
        excess_bytes=excess,
    )


def out_of_time() -> RunFailed:
    """The error at the end of a search's time."""
    return RunFailed(
        "search-out-of-time",
        "the search ran out of time before this was measured.",
        fix="give the search more time: --budget",
    )


def _block_updates(update_s: float) -> int:
    """The number of updates in a block that is long enough to be measured."""
    num_updates = 1
    while update_s * num_updates < _BLOCK_S and num_updates < 1024:
        num_updates *= 2
    return num_updates


def _is_clear(interval: Interval) -> bool:
    width = interval.high / interval.low - 1.0
    is_apart = interval.low > _CLEAR_GAIN or interval.high < _CLEAR_LOSS
    return width < _NARROW or (is_apart and width < _WIDE)


def _median(values: tuple[float, ...]) -> float:
    return sorted(values)[len(values) // 2]


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
