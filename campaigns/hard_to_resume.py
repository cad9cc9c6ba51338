"""A training with everything that a careless resume would not reproduce.

Dropout, BatchNorm, a moving average of the weights, a schedule by step, clipping, augmentation that
draws from torch, NumPy and Python, a partial last batch, and several megabytes of weights, so that
writing a checkpoint takes long enough for a kill to hit it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import flatout

NUM_FEATURES, NUM_CLASSES = 256, 10
NUM_SAMPLES, BATCH_SIZE, EPOCHS = 1_294, 24, 3
NUM_STEPS = -(-NUM_SAMPLES // BATCH_SIZE) * EPOCHS

Sample = tuple[Tensor, Tensor]


def experiment(
    data: Literal["tensors", "samples", "stream"] = "tensors", width: int = 640
) -> flatout.Experiment:
    """A classifier of made-up points.

    Args:
        data: tensors sliced in memory, samples read by a loader, or an iterable with a state.
        width: units of both hidden layers.
    """
    make = {"tensors": lambda: make_points(NUM_SAMPLES, seed=1), "samples": Samples,
            "stream": Stream}[data]  # fmt: skip
    return flatout.Experiment(
        model=lambda: build_model(width),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        schedule=lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=2e-3, total_steps=NUM_STEPS + 1
        ),
        schedule_every="step",
        loss=loss,
        metrics=metrics,
        train_data=make,
        validation_data=lambda: make_points(240, seed=2),
        batch_size=BATCH_SIZE,
        epochs=EPOCHS,
        best="accuracy",
        ema=0.99,
        clip_norm=1.0,
    )


def build_model(width: int) -> nn.Module:
    def block(num_inputs: int) -> list[nn.Module]:
        return [nn.Linear(num_inputs, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.2)]

    return nn.Sequential(*block(NUM_FEATURES), *block(width), nn.Linear(width, NUM_CLASSES))


def loss(model: nn.Module, batch: Sample) -> Tensor:
    points, labels = batch
    return cross_entropy(model(points), labels)


def metrics(model: nn.Module, batch: Sample) -> dict[str, Tensor]:
    points, labels = batch
    logits = model(points)
    return {
        "accuracy": (logits.argmax(dim=1) == labels).float().mean(),
        "loss": cross_entropy(logits, labels),
    }


def make_points(count: int, *, seed: int) -> Sample:
    """Points (count, 256) around one centre for each class, and their labels (count,)."""
    centres = torch.randn(NUM_CLASSES, NUM_FEATURES, generator=torch.Generator().manual_seed(0))
    dice = torch.Generator().manual_seed(seed)
    labels = torch.randint(NUM_CLASSES, (count,), generator=dice)
    noise = torch.randn(count, NUM_FEATURES, generator=dice)
    return 0.3 * centres[labels] + noise, labels


def augmented(point: Tensor) -> Tensor:
    """Shifted, scaled and noisy: one draw from each of the three libraries."""
    shifted = point.roll(random.randint(-2, 2)) * float(np.random.uniform(0.9, 1.1))
    return shifted + 0.1 * torch.randn(NUM_FEATURES)


class Samples(torch.utils.data.Dataset[Sample]):
    """Samples that are read one by one, like images on a disk."""

    def __init__(self) -> None:
        self._points, self._labels = make_points(NUM_SAMPLES, seed=1)

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> Sample:
        return augmented(self._points[index]), self._labels[index]


class Stream:
    """An iterable with a state: how many samples it has yielded."""

    def __init__(self) -> None:
        self._points, self._labels = make_points(NUM_SAMPLES, seed=1)
        self._next = 0

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __iter__(self) -> Iterator[Sample]:
        while self._next < NUM_SAMPLES:
            index = self._next
            self._next += 1
            yield augmented(self._points[index]), self._labels[index]
        self._next = 0

    def state_dict(self) -> dict[str, Any]:
        return {"next": self._next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._next = state["next"]
