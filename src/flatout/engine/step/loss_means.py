"""Means of the losses that an experiment's own step names, over a line and over an epoch."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from flatout.engine.progress import TrainState
from flatout.engine.runtime.step_timer import Losses


class LossMeans:
    """Gathers losses by name; a step need not give all of them.

    Args:
        device: where they are computed.
        position: keeps the sums of the epoch, so that a resume continues with them.
    """

    def __init__(self, device: torch.device, position: TrainState) -> None:
        self._device = device
        self._position = position
        self._waiting: dict[str, Losses] = {}
        self._line: dict[str, list[float]] = {}

    def add(self, losses: dict[str, Tensor], num_samples: int) -> None:
        """Takes note of a step's losses, scalars on the device."""
        for name, loss in losses.items():
            self._waiting.setdefault(name, Losses(self._device)).add(loss, num_samples)

    def take(self, *, is_waiting: bool) -> None:
        """Takes in those that are there; with is_waiting, all. Those that are NaN are left
        out.
        """
        for name, waiting in self._waiting.items():
            for loss, num_samples in waiting.take(is_waiting=is_waiting):
                if math.isfinite(loss):
                    for sums in (self._line, self._position.epoch_losses):
                        total, count = sums.get(name, (0.0, 0))
                        sums[name] = [total + loss * num_samples, count + num_samples]

    def end_line(self) -> dict[str, float]:
        """Means since the last line."""
        line, self._line = self._line, {}
        return _means(line)

    def end_epoch(self) -> dict[str, float]:
        """Means over the epoch."""
        epoch, self._position.epoch_losses = self._position.epoch_losses, {}
        return _means(epoch)


def _means(sums: dict[str, list[float]]) -> dict[str, float]:
    return {name: total / count for name, (total, count) in sums.items()}
