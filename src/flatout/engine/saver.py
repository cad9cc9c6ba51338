"""Checkpoints beside training: copied in the step's thread, written in another, at a fair price.

The price is measured: how long training stood still for the copy, and how much slower it was
while the file was written. The interval is chosen so that both together stay under 2 %.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from flatout.engine.checkpoint import write_checkpoint
from flatout.engine.failures import is_out_of_memory
from flatout.engine.memory import release_memory
from flatout.engine.meter import Meter
from flatout.engine.state import Packed
from flatout.engine.tensor_file import write_tensors
from flatout.nouns.lines import Checkpointed
from flatout.system import store
from flatout.system.claim import Claim
from flatout.system.clock import elapsed_s, now_s
from flatout.system.runs import RunFolder

_SHARE = 0.02
_LEAST_INTERVAL_S = 5.0
# However dear a checkpoint: more than this is not to be lost.
_LARGEST_INTERVAL_S = 1800.0
# Before the first one was measured: a slow disk.
_ASSUMED_BYTES_PER_S = 100e6
# The first one comes by then, however dear it may be: what it costs is measured by it, and a run
# that cannot be saved learns so.
_FIRST_WITHIN_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """What is written together: weights to be kept, if there are better ones, and the state."""

    step: int
    packed: Packed
    weights: Packed | None = None
    weights_metadata: dict[str, str] = field(default_factory=dict)


class Saver:
    """Writes checkpoints in the background.

    Args:
        folder: the run's folder, which is claimed for this process.
        every: steps between checkpoints; None chooses the interval by cost.
        meter: knows how long the steps take.
    """

    def __init__(self, folder: RunFolder, every: int | None, meter: Meter) -> None:
        self._folder = folder
        self._claim = Claim(folder.writer)
        self._meter = meter
        self._every = every
        self._writing: _Writing | None = None
        self._written: list[Checkpointed] = []
        self._interval_s = _LEAST_INTERVAL_S
        self._last_save_s = elapsed_s()
        self._step = 0
        # Seconds in steps, and the step, when training was last without a write beside it.
        self._undisturbed: tuple[float, int] | None = None
        self.cost_s = 0.0
        # For a copy, and for what it takes to write it.
        self._has_room = True

    def expect_size(self, num_bytes: int) -> None:
        """Chooses the first interval by the state's size, before any cost was measured."""
        cost_s = num_bytes / _ASSUMED_BYTES_PER_S
        self._set_interval(cost_s)
        self._interval_s = min(self._interval_s, _FIRST_WITHIN_S)

    def _set_interval(self, cost_s: float) -> None:
        fair_s = max(_LEAST_INTERVAL_S, cost_s / _SHARE)
        self._interval_s = min(fair_s, _LARGEST_INTERVAL_S)

    def is_due(self, step: int) -> bool:
        """Whether the state after this step is to be saved; to be asked after each step."""
        self._step = step
        if self._undisturbed is None:
            self._undisturbed = (self._meter.steps_s(), step)
        if self._writing is not None and not self._writing.thread.is_alive():
            self._account(self._writing, is_beside=True)
        if self._every is not None:
            return step % self._every == 0
        return elapsed_s() - self._last_save_s >= self._interval_s

    def save(self, snapshot: Callable[[bool], Snapshot]) -> None:
        """Copies the state now and has it written beside what follows.

        Waits for the one before, if that is still being written. Without memory for a copy, the
        state itself is written, and waited for.

        Args:
            snapshot: gives the state; as a copy, if its argument is True.
        """
        began_s = elapsed_s()
        step_s = self._undisturbed_step_s()
        self.finish()
        taken = self._copied(snapshot)
        is_copied = taken is not None
        if taken is None:
            # Outside of `except`, where nothing holds the part of the copy that was made.
            release_memory()
            taken = snapshot(False)
        self._last_save_s = began_s
        stall_s = elapsed_s() - began_s
        steps_s = self._meter.steps_s()
        times = stall_s, step_s, steps_s
        self._writing = _Writing(self._folder, self._claim, taken, times, is_copied=is_copied)
        self._writing.thread.start()
        if not is_copied:
            self.finish()

    def _copied(self, snapshot: Callable[[bool], Snapshot]) -> Snapshot | None:
        try:
            return snapshot(True) if self._has_room else None
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        return None

    def finish(self) -> None:
        """Waits until nothing is being written; raises what went wrong with it."""
        if self._writing is not None:
            is_beside = not self._writing.thread.is_alive()
            self._writing.thread.join()
            self._account(self._writing, is_beside=is_beside)

    def take_written(self) -> list[Checkpointed]:
        """Lines about checkpoints that have reached the disk since the last call."""
        written, self._written = self._written, []
        return written

    def _undisturbed_step_s(self) -> float | None:
        """How long a step takes without a write beside it; None before there were any."""
        if self._writing is not None or self._undisturbed is None:
            return None
        since_s, step = self._undisturbed
        if self._step <= step:
            return None
        return (self._meter.steps_s() - since_s) / (self._step - step)

    def _account(self, done: _Writing, *, is_beside: bool) -> None:
        """Adds up what a checkpoint has cost, from step to step, and sets the interval by it."""
        self._writing = None
        steps_s = self._meter.steps_s()
        self._undisturbed = (steps_s, self._step)
        if done.error is not None and is_out_of_memory(done.error) and self._has_room:
            # It could not be written beside the training: the next one is, with the training still.
            self._has_room, self._last_save_s = False, -math.inf
            return
        if done.error is not None:
            raise done.error
        slowdown_s = 0.0
        if is_beside and done.step_s is not None:
            undisturbed_s = (self._step - done.taken.step) * done.step_s
            slowdown_s = max(0.0, steps_s - done.began_steps_s - undisturbed_s)
        self.cost_s += done.stall_s + slowdown_s
        self._set_interval(done.stall_s + slowdown_s)
        self._written.append(
            Checkpointed(
                at=now_s(),
                step=done.taken.step,
                stall_s=done.stall_s,
                write_s=done.write_s,
                slowdown_s=slowdown_s,
                size_bytes=done.size_bytes,
                is_copied=done.is_copied,
            )
        )


class SilentSaver:
    """Stands in for a Saver on a rank that writes nothing: the first one writes for all."""

    cost_s = 0.0

    def expect_size(self, num_bytes: int) -> None:
        """See Saver."""

    def is_due(self, step: int) -> bool:
        """See Saver: the first rank says so."""
        return False

    def save(self, snapshot: Callable[[bool], Snapshot]) -> None:
        """See Saver."""

    def finish(self) -> None:
        """See Saver."""

    def take_written(self) -> list[Checkpointed]:
        """See Saver."""
        return []


class _Writing:
    """One checkpoint on its way to the disk, in a thread of its own."""

    def __init__(
        self,
        folder: RunFolder,
        claim: Claim,
        taken: Snapshot,
        times: tuple[float, float | None, float],
        *,
        is_copied: bool,
    ) -> None:
        self.taken = taken
        self.is_copied = is_copied
        # Of the copy, of a step undisturbed, of all steps so far.
        self.stall_s, self.step_s, self.began_steps_s = times
        self._claim = claim
        self.write_s = 0.0
        self.size_bytes = 0
        self.error: BaseException | None = None
        self._folder = folder
        self.thread = threading.Thread(target=self._write, name="checkpoint")

    def _write(self) -> None:
        taken = self.taken
        began_s = elapsed_s()
        try:
            self._claim.require()
            # Before the checkpoint that calls them the best: after it, nobody would write them.
            if taken.weights is not None:
                write_tensors(
                    taken.weights.tensors, taken.weights_metadata, lambda _: self._folder.weights
                )
            # The state says how long metrics.jsonl is: that much of it must be there as well.
            store.sync_file(self._folder.metrics)
            self.size_bytes = write_checkpoint(self._folder, taken.step, taken.packed)
        except BaseException as error:  # noqa: BLE001 - raised again where training goes on
            self.error = error
        self.write_s = elapsed_s() - began_s
