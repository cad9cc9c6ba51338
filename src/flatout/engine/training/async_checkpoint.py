"""Asynchronous checkpoints: copied in the step's thread, written in another, at a bounded cost.

The price is measured: how long training paused for the copy, and how much slower it was
while the file was written. The interval is chosen so that both together stay under 2 %.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from flatout.engine.runtime.error_map import is_out_of_memory
from flatout.engine.runtime.gpu_memory import release_memory
from flatout.engine.runtime.step_timer import StepTimer
from flatout.engine.tensors.safetensors_file import write_tensors
from flatout.engine.tensors.state_tree import Packed
from flatout.engine.training.checkpoints import write_checkpoint
from flatout.schema.run_lines import Checkpointed
from flatout.system import atomic_files
from flatout.system.clock import elapsed_s, now_s
from flatout.system.store.run_claim import RunClaim
from flatout.system.store.run_folder import RunFolder

# Of the training time, for stalls and slowdown together: rarer checkpoints lose more in a crash.
_SHARE = 0.02
# However cheap a checkpoint: less than this is hardly worth saving, and wears the disk.
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
    """The content of a checkpoint: the state, and weights to keep if there are better ones."""

    step: int
    packed: Packed
    weights: Packed | None = None
    weights_metadata: dict[str, str] = field(default_factory=dict)


class AsyncCheckpointer:
    """Writes checkpoints in the background.

    Args:
        folder: the run's folder, which is claimed for this process.
        every: steps between checkpoints; None chooses the interval by cost.
        timer: knows how long the steps take.
    """

    def __init__(self, folder: RunFolder, every: int | None, timer: StepTimer) -> None:
        self._folder = folder
        self._claim = RunClaim(folder.writer)
        self._timer = timer
        self._every = every
        self._writing: _CheckpointWrite | None = None
        self._written: list[Checkpointed] = []
        self._interval_s = _LEAST_INTERVAL_S
        self._last_save_s = elapsed_s()
        self._step = 0
        # Seconds in steps, and the step, when no write was last running.
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
        """Whether the state after this step should be saved; to be called after each step."""
        self._step = step
        if self._undisturbed is None:
            self._undisturbed = (self._timer.steps_s(), step)
        if self._writing is not None and not self._writing.thread.is_alive():
            self._account(self._writing, is_beside=True)
        if self._every is not None:
            return step % self._every == 0
        return elapsed_s() - self._last_save_s >= self._interval_s

    def save(self, snapshot: Callable[[bool], Snapshot]) -> None:
        """Copies the state now and has it written in the background.

        Waits for the one before, if that is still being written. Without memory for a copy, the
        state itself is written, and waited for.

        Args:
            snapshot: gives the state; as a copy, if its argument is True.
        """
        began_s = elapsed_s()
        step_s = self._undisturbed_step_s()
        self.finish()
        snapshot_taken = self._copied(snapshot)
        is_copied = snapshot_taken is not None
        if snapshot_taken is None:
            # Outside of `except`, where nothing holds the part of the copy that was made.
            release_memory()
            snapshot_taken = snapshot(False)
        self._last_save_s = began_s
        stall_s = elapsed_s() - began_s
        steps_s = self._timer.steps_s()
        times = stall_s, step_s, steps_s
        self._writing = _CheckpointWrite(
            self._folder, self._claim, snapshot_taken, times, is_copied=is_copied
        )
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
        """The time of a step while nothing is written; None before any was measured."""
        if self._writing is not None or self._undisturbed is None:
            return None
        since_s, step = self._undisturbed
        if self._step <= step:
            return None
        return (self._timer.steps_s() - since_s) / (self._step - step)

    def _account(self, done: _CheckpointWrite, *, is_beside: bool) -> None:
        """Adds up what a checkpoint has cost, from step to step, and sets the interval by it."""
        self._writing = None
        steps_s = self._timer.steps_s()
        self._undisturbed = (steps_s, self._step)
        if done.error is not None and is_out_of_memory(done.error) and self._has_room:
            # It could not be written in the background: the next one is written while training
            # waits.
            self._has_room, self._last_save_s = False, -math.inf
            return
        if done.error is not None:
            raise done.error
        slowdown_s = 0.0
        if is_beside and done.step_s is not None:
            undisturbed_s = (self._step - done.snapshot.step) * done.step_s
            slowdown_s = max(0.0, steps_s - done.began_steps_s - undisturbed_s)
        self.cost_s += done.stall_s + slowdown_s
        self._set_interval(done.stall_s + slowdown_s)
        self._written.append(
            Checkpointed(
                at=now_s(),
                step=done.snapshot.step,
                stall_s=done.stall_s,
                write_s=done.write_s,
                slowdown_s=slowdown_s,
                size_bytes=done.size_bytes,
                is_copied=done.is_copied,
            )
        )


class NoCheckpointer:
    """Stands in for an AsyncCheckpointer on a rank that writes nothing: rank 0 writes for all."""

    cost_s = 0.0

    def expect_size(self, num_bytes: int) -> None:
        """See AsyncCheckpointer."""

    def is_due(self, step: int) -> bool:
        """See AsyncCheckpointer: the first rank decides."""
        return False

    def save(self, snapshot: Callable[[bool], Snapshot]) -> None:
        """See AsyncCheckpointer."""

    def finish(self) -> None:
        """See AsyncCheckpointer."""

    def take_written(self) -> list[Checkpointed]:
        """See AsyncCheckpointer."""
        return []


class _CheckpointWrite:
    """One checkpoint on its way to the disk, in a thread of its own."""

    def __init__(
        self,
        folder: RunFolder,
        claim: RunClaim,
        snapshot: Snapshot,
        times: tuple[float, float | None, float],
        *,
        is_copied: bool,
    ) -> None:
        self.snapshot = snapshot
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
        snapshot = self.snapshot
        began_s = elapsed_s()
        try:
            self._claim.require()
            # Before the checkpoint that calls them the best: afterwards nothing would write them.
            if snapshot.weights is not None:
                write_tensors(
                    snapshot.weights.tensors,
                    snapshot.weights_metadata,
                    lambda _: self._folder.weights,
                )
            # The state says how long metrics.jsonl is: that much of it must be there as well.
            atomic_files.sync_file(self._folder.metrics)
            self.size_bytes = write_checkpoint(self._folder, snapshot.step, snapshot.packed)
        except BaseException as error:  # noqa: BLE001 - raised again where training continues
            self.error = error
        self.write_s = elapsed_s() - began_s
