"""Times and metrics of a training, taken without making it wait.

On a CPU an operation is done when it returns, so the clock is read between the parts of a step.
On a GPU the host runs ahead: every so many steps events are recorded between the parts, read when
the device has passed them, and the measured time is shared out as they say.
"""

from __future__ import annotations

import contextlib
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import psutil
import torch
from torch import Tensor

from flatout.system.clock import elapsed_s

PARTS = ("data", "copy", "forward", "backward", "optimizer", "checkpoint", "validation", "other")
# Between ranks: what a run of a single one does not have. And of a CUDA graph, which is not looked
# into: all of it.
_BETWEEN, _WHOLE = "exchange", "step"
_ON_DEVICE = ("copy", "forward", "backward", _BETWEEN, "optimizer", _WHOLE, "other")
_OF_STEPS = ("data", "copy", "forward", "backward", _BETWEEN, "optimizer", _WHOLE)
_SAMPLED_EVERY = 16


class StepTimer:
    """Splits the time of a training into its parts.

    Args:
        device: where the step runs.
        split_s: seconds of earlier sessions of the same run, to continue from.
    """

    def __init__(self, device: torch.device, split_s: dict[str, float] | None = None) -> None:
        self._split_s = dict.fromkeys(PARTS, 0.0) | (split_s or {})
        self._last_s = elapsed_s()
        self._events = _DeviceEvents() if device.type == "cuda" else None
        self._is_paused = False

    def mark(self, part: str) -> None:
        """The time since the last mark was spent on that part."""
        if self._is_paused:
            return
        now_s = elapsed_s()
        self._split_s[part] = self._split_s.get(part, 0.0) + now_s - self._last_s
        self._last_s = now_s
        if self._events is not None:
            self._events.mark(part)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Pauses the timer: what is only recorded takes no time."""
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False

    def steps_s(self) -> float:
        """Seconds the host has spent on steps: without validation, checkpoints and epochs' ends."""
        return sum(self._split_s.get(part, 0.0) for part in _OF_STEPS)

    def validation_s(self) -> float:
        """Seconds spent on validations so far."""
        return self._split_s["validation"]

    def begin_step(self) -> None:
        """An update, or a launch of several, begins: on a GPU, one in so many is looked at."""
        if self._events is not None:
            self._events.begin_step()

    def split_s(self) -> dict[str, float]:
        """Seconds in each part so far; on a GPU the device's parts share what the host measured."""
        split = dict(self._split_s)
        shares = self._events.shares() if self._events is not None else None
        if shares:
            parts = [part for part in _ON_DEVICE if part in split]
            total_s = sum(split[part] for part in parts)
            split |= {part: total_s * shares.get(part, 0.0) for part in parts}
        return split


class _DeviceEvents:
    """CUDA events between the parts of sampled steps, summed when the device has passed them."""

    def __init__(self) -> None:
        self._num_steps = 0
        self._current: list[tuple[str, Any]] | None = None
        self._pending: deque[list[tuple[str, Any]]] = deque()
        self._sums_s: dict[str, float] = {}

    def begin_step(self) -> None:
        if self._current:
            self._pending.append(self._current)
        is_sampled = self._num_steps % _SAMPLED_EVERY == 0
        self._current = [("", _recorded_event())] if is_sampled else None
        self._num_steps += 1

    def mark(self, part: str) -> None:
        if self._current is not None and part in _ON_DEVICE:
            self._current.append((part, _recorded_event()))

    def shares(self) -> dict[str, float]:
        while self._pending and self._pending[0][-1][1].query():
            marks = self._pending.popleft()
            for (_, before), (part, after) in zip(marks, marks[1:], strict=False):
                seconds = before.elapsed_time(after) / 1e3
                self._sums_s[part] = self._sums_s.get(part, 0.0) + seconds
        total_s = sum(self._sums_s.values())
        return {part: s / total_s for part, s in self._sums_s.items()} if total_s > 0 else {}


def _recorded_event() -> Any:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


@dataclass
class Losses:
    """Losses of the last updates, read late: the step never waits for its own loss.

    On a GPU they are copied to pinned memory in the background and taken a moment later.
    """

    device: torch.device
    _waiting: list[tuple[Tensor, int]] = field(default_factory=list)
    _copied: deque[tuple[Tensor, list[int], Any]] = field(default_factory=deque)

    def add(self, loss: Tensor, num_samples: int) -> None:
        """Keeps an update's mean loss, a scalar on the device."""
        self._waiting.append((loss, num_samples))

    def num_pending(self) -> int:
        """The number of values added and not yet taken."""
        return len(self._waiting) + sum(len(sizes) for _, sizes, _ in self._copied)

    def take(self, *, is_waiting: bool = False) -> list[tuple[float, int]]:
        """Losses that are there, oldest first, each with its number of samples.

        Args:
            is_waiting: waits for all of them, rather than leave the newest for the next time.
        """
        if self._waiting:
            losses = torch.stack([loss.float() for loss, _ in self._waiting])
            sizes = [size for _, size in self._waiting]
            if self.device.type != "cuda":
                self._waiting.clear()
                return list(zip(losses.tolist(), sizes, strict=True))
            host = torch.empty(losses.shape, pin_memory=True)
            self._waiting.clear()
            host.copy_(losses, non_blocking=True)
            event = torch.cuda.Event()
            # The one that copies: an event on another GPU's stream would be there too early.
            event.record(torch.cuda.current_stream(self.device))
            self._copied.append((host, sizes, event))
        taken: list[tuple[float, int]] = []
        while self._copied and (is_waiting or self._copied[0][2].query()):
            host, sizes, event = self._copied.popleft()
            event.synchronize()
            taken += zip(host.tolist(), sizes, strict=True)
        return taken


def memory_bytes(device: torch.device) -> int:
    """Memory that the training holds now: on the GPU by its allocator, else by this process."""
    if device.type == "cuda":
        return torch.cuda.memory_reserved(device)
    return int(psutil.Process().memory_info().rss)


def allocated_bytes(device: torch.device) -> int | None:
    """Memory of the GPU that tensors take, of what its allocator holds; None on a CPU."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else None


def peak_allocated_bytes(device: torch.device) -> int | None:
    """The most memory of the GPU that tensors have taken; None on a CPU."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None


def peak_memory_bytes(device: torch.device) -> int:
    """The most memory that the training has held."""
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
