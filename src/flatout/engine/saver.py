"""Checkpoints beside training: copied in the step's thread, written in another, at a fair price.

The price is measured: how long training stood still for the copy, and how much slower it was
while the file was written. The interval is chosen so that both together stay under 2 %.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from flatout.engine.checkpoint import write_checkpoint, write_tensors
from flatout.engine.state import Packed
from flatout.nouns.lines import Checkpointed
from flatout.system.clock import elapsed_s, now_s
from flatout.system.runs import RunFolder

_SHARE = 0.02
_LEAST_INTERVAL_S = 5.0
# Before the first one was measured: a slow disk, so that the first comes rather late than dear.
_ASSUMED_BYTES_PER_S = 100e6


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
        folder: the run's folder.
        every: steps between checkpoints; None chooses the interval by cost.
        num_bytes: size of the state, for the first interval, before any cost was measured.
    """

    def __init__(self, folder: RunFolder, every: int | None, num_bytes: int) -> None:
        self._folder = folder
        self._every = every
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._written: list[Checkpointed] = []
        self._interval_s = max(_LEAST_INTERVAL_S, num_bytes / _ASSUMED_BYTES_PER_S / _SHARE)
        self._last_save_s = elapsed_s()
        self._step = 0
        # When, and at which step, training was last without a write beside it.
        self._undisturbed: tuple[float, int] | None = None
        self._is_waited_for = False
        self.cost_s = 0.0

    def is_due(self, step: int) -> bool:
        """Whether the state after this step is to be saved."""
        self._step = step
        if self._undisturbed is None:
            self._undisturbed = (elapsed_s(), step)
        if self._every is not None:
            return step % self._every == 0
        return elapsed_s() - self._last_save_s >= self._interval_s

    def save(self, snapshot: Callable[[], Snapshot]) -> None:
        """Copies the state now and has it written beside what follows.

        Waits for the one before, if that is still being written.
        """
        began_s = elapsed_s()
        self.finish()
        step_s = self._undisturbed_step_s(began_s)
        taken = snapshot()
        self._last_save_s = began_s
        self._is_waited_for = False
        self._thread = threading.Thread(
            target=self._write, args=(taken, elapsed_s() - began_s, step_s), name="checkpoint"
        )
        self._thread.start()

    def finish(self) -> None:
        """Waits until nothing is being written; raises what went wrong with it."""
        if self._thread is not None:
            self._is_waited_for = self._thread.is_alive()
            self._thread.join()
            self._thread = None
        self.check()

    def check(self) -> None:
        """Raises, in the training's thread, what went wrong in the writing one."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def take_written(self) -> list[Checkpointed]:
        """Lines about checkpoints that have reached the disk since the last call."""
        written, self._written = self._written, []
        return written

    def _undisturbed_step_s(self, now: float) -> float | None:
        if self._undisturbed is None or self._step <= self._undisturbed[1]:
            return None
        since_s, step = self._undisturbed
        return (now - since_s) / (self._step - step)

    def _write(self, taken: Snapshot, stall_s: float, step_s: float | None) -> None:
        began_s, first_step = elapsed_s(), self._step
        try:
            if taken.weights is not None:
                write_tensors(self._folder.weights, taken.weights.tensors, taken.weights_metadata)
            size_bytes = write_checkpoint(self._folder, taken.step, taken.packed)
        except BaseException as error:  # noqa: BLE001 - raised again in the training's thread, by check()
            self._error = error
            return
        write_s = elapsed_s() - began_s
        slowdown_s = 0.0
        if step_s is not None and not self._is_waited_for:
            slowdown_s = max(0.0, write_s - (self._step - first_step) * step_s)
        self.cost_s += stall_s + slowdown_s
        self._interval_s = max(_LEAST_INTERVAL_S, (stall_s + slowdown_s) / _SHARE)
        self._undisturbed = (elapsed_s(), self._step)
        self._written.append(
            Checkpointed(
                at=now_s(),
                step=taken.step,
                stall_s=stall_s,
                write_s=write_s,
                slowdown_s=slowdown_s,
                size_bytes=size_bytes,
            )
        )
