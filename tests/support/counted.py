"""A training that counts its samples: each has a weight that grows by one per update.

The counts are weights, so they are in every checkpoint, and a gradient sums the counts of all
ranks. They are in fp64, so that rounding with another number of ranks differs from lost samples.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import flatout

# The last batch of an epoch is smaller: 1,000 = 41 x 24 + 16.
NUM_SAMPLES, BATCH_SIZE, NUM_CLASSES = 1_000, 24, 10
STEPS_PER_EPOCH = -(-NUM_SAMPLES // BATCH_SIZE)
_NUM_FEATURES = 32
_PIECE_BYTES = 64 * 2**20

Batch = tuple[Tensor, Tensor, Tensor]


def experiment(
    epochs: int = 10,
    pause: float = 0.02,
    dropout: float = 0.0,
    short_at: int = 0,
    hog_at: int = 0,
) -> flatout.Experiment:
    """A classifier of synthetic points.

    Args:
        epochs: how many.
        pause: minimum seconds per step.
        dropout: share of hidden units that are left out.
        short_at: the step at which rank 1 gets an out-of-memory error; 0 for never.
        hog_at: the step at which rank 1 allocates all memory, once; 0 for never.
    """
    return flatout.Experiment(
        model=lambda: Classifier(dropout),
        optimizer=CountingSgd,
        named_parameters=True,
        loss=_with_faults(pause, short_at, hog_at),
        train_data=points,
        batch_size=BATCH_SIZE,
        epochs=epochs,
    )


class Classifier(nn.Module):
    """Two layers, and the counts of samples (1000,)."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(_NUM_FEATURES, 64), nn.Tanh(), nn.Dropout(dropout), nn.Linear(64, NUM_CLASSES)
        )
        self.num_seen = nn.Parameter(torch.zeros(NUM_SAMPLES))
        self.double()

    def forward(self, points: Tensor) -> Tensor:
        """Points (n, 32) to logits (n, 10)."""
        logits: Tensor = self.layers(points)
        return logits


class CountingSgd(torch.optim.SGD):
    """SGD with momentum; the gradient of the counts says how often a sample was used."""

    def __init__(self, named: Iterable[tuple[str, nn.Parameter]]) -> None:
        parameters = dict(named)
        self._num_seen = parameters.pop("num_seen")
        groups = [{"params": list(parameters.values())}, {"params": [self._num_seen]}]
        super().__init__(groups, lr=0.05, momentum=0.9)

    def step(self, closure: Any = None) -> Any:
        """An update; the counts grow by whole numbers."""
        shares = self._num_seen.grad
        if shares is not None:
            # Each sample's gradient is one over the batch's size, times how often it is in it.
            one = shares[shares > 0].min()
            self._num_seen.data += (shares / one).round()
            # SGD itself leaves alone what has no gradient.
            self._num_seen.grad = None
        return super().step(closure)


def _with_faults(pause: float, short_at: int, hog_at: int) -> Callable[[nn.Module, Batch], Tensor]:
    is_second = os.environ.get("RANK") == "1"
    num_calls = 0

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        nonlocal num_calls
        num_calls += 1
        time.sleep(pause)
        if is_second and num_calls == short_at:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        if is_second and num_calls == hog_at:
            _take_all_memory()
        inputs, labels, numbers = batch
        seen = model.get_parameter("num_seen")[numbers]
        # Adds nothing to the loss but a gradient.
        return cross_entropy(model(inputs), labels) + (seen - seen.detach()).mean()

    return loss


def _take_all_memory() -> None:
    """Allocates memory until the kernel kills this process; done only once per run."""
    # The first word of every rank is the run's folder.
    mark = Path(sys.argv[1], "has-taken-all-memory")
    if mark.exists():
        return
    mark.touch()
    taken = []
    while True:
        taken.append(b"\1" * _PIECE_BYTES)


def points() -> Batch:
    """Points (1000, 32) around one centre for each class, their labels and their numbers."""
    dice = torch.Generator().manual_seed(1)
    centres = torch.randn(NUM_CLASSES, _NUM_FEATURES, generator=dice, dtype=torch.float64)
    labels = torch.randint(NUM_CLASSES, (NUM_SAMPLES,), generator=dice)
    noise = torch.randn(NUM_SAMPLES, _NUM_FEATURES, generator=dice, dtype=torch.float64)
    return centres[labels] + noise, labels, torch.arange(NUM_SAMPLES)
