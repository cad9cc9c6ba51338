"""A small training in which something goes wrong after a while; see `alarms.py`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset

import flatout

_NUM_SAMPLES, _NUM_FEATURES, _NUM_CLASSES = 2_000, 64, 10
_LEAK_BYTES_PER_S = 30e6


def experiment(
    fault: Literal[
        "none", "data-starvation", "nonfinite-loss", "loss-flat", "memory-leak", "rank-straggling"
    ] = "none",
    after: float = 15.0,
    mark: str = "",
    epochs: int = 100_000,
) -> flatout.Experiment:
    """A classifier of synthetic points, 32 in a batch.

    Args:
        fault: what goes wrong.
        after: seconds of training before it does.
        mark: the file into which the time is written at which it did.
        epochs: how many.
    """
    clock = _Clock(fault, after, mark)
    return flatout.Experiment(
        model=lambda: _Classifier(clock),
        optimizer=lambda parameters: torch.optim.SGD(
            parameters, lr=0.0 if fault == "loss-flat" else 0.01
        ),
        loss=_loss(clock),
        train_data=lambda: _Points(clock, _NUM_SAMPLES),
        validation_data=lambda: _Points(_Clock("none", 0.0, ""), 200),
        batch_size=32,
        epochs=epochs,
    )


class _Clock:
    """Whether the fault has come; writes down when it did."""

    def __init__(self, fault: str, after_s: float, mark: str) -> None:
        self.fault = fault
        self._after_s = 0.0 if fault == "loss-flat" else after_s
        self._mark = mark
        self._began_s = time.monotonic()
        self._has_come = False

    def has_come(self, fault: str) -> bool:
        """Whether this fault has come by now."""
        if fault != self.fault:
            return False
        if not self._has_come and time.monotonic() - self._began_s >= self._after_s:
            self._has_come = True
            if self._mark:
                Path(self._mark).write_text(str(time.time()), encoding="utf-8")
        return self._has_come

    @property
    def seconds(self) -> float:
        """Since the fault has come."""
        return time.monotonic() - self._began_s - self._after_s


class _Points(Dataset[tuple[Tensor, int]]):
    """Points (64,) around one centre for each class."""

    def __init__(self, clock: _Clock, count: int) -> None:
        dice = torch.Generator().manual_seed(1)
        centres = torch.randn(_NUM_CLASSES, _NUM_FEATURES, generator=dice)
        self._labels = torch.randint(_NUM_CLASSES, (count,), generator=dice)
        self._points = centres[self._labels] + torch.randn(count, _NUM_FEATURES, generator=dice)
        self._clock = clock
        self._leaked: list[bytearray] = []
        self._leaked_bytes = 0

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if self._clock.has_come("data-starvation"):
            time.sleep(0.004)
        if self._clock.has_come("memory-leak"):
            missing = int(self._clock.seconds * _LEAK_BYTES_PER_S) - self._leaked_bytes
            if missing > 2**20:
                self._leaked.append(bytearray(b"\1" * missing))
                self._leaked_bytes += missing
        return self._points[index], int(self._labels[index])


class _Classifier(nn.Module):
    """Three layers; rank 1 may be slow."""

    def __init__(self, clock: _Clock) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(_NUM_FEATURES, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(),
            nn.Linear(512, _NUM_CLASSES),
        )  # fmt: skip
        self._clock = clock

    def forward(self, points: Tensor) -> Tensor:
        """Points (n, 64) to logits (n, 10)."""
        if os.environ.get("RANK") == "1" and self._clock.has_come("rank-straggling"):
            time.sleep(0.03)
        logits: Tensor = self.layers(points)
        return logits


def _loss(clock: _Clock) -> Callable[[nn.Module, tuple[Tensor, Tensor]], Tensor]:
    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        points, labels = batch
        value = cross_entropy(model(points), labels)
        clock.has_come("loss-flat")
        return value * float("nan") if clock.has_come("nonfinite-loss") else value

    return loss
