"""What `sweep_nodes.py` sweeps: a small classifier in fp64, whose steps take a while.

In fp64, so that rounding with another number of ranks differs from lost samples.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import flatout

NUM_FEATURES, NUM_CLASSES = 32, 10


def experiment(lr: float = 0.05, epochs: int = 4, pause: float = 0.02) -> flatout.Experiment:
    """A classifier of synthetic points.

    Args:
        lr: learning rate.
        epochs: how many.
        pause: minimum seconds per step.
    """

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        if model.training:
            time.sleep(pause)
        inputs, labels = batch
        return cross_entropy(model(inputs), labels)

    return flatout.Experiment(
        model=build_model,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=lr, momentum=0.9),
        loss=loss,
        train_data=lambda: points(1_000, seed=1),
        validation_data=lambda: points(200, seed=2),
        # The last batch of an epoch is smaller: 1,000 = 41 x 24 + 16.
        batch_size=24,
        epochs=epochs,
    )


def build_model() -> nn.Module:
    return nn.Sequential(
        nn.Linear(NUM_FEATURES, 64), nn.Tanh(), nn.Linear(64, NUM_CLASSES)
    ).double()  # fmt: skip


def points(number: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """Points (number, 32) around one centre for each class, and their labels (number,)."""
    centres = torch.randn(NUM_CLASSES, NUM_FEATURES, generator=dice(0), dtype=torch.float64)
    labels = torch.randint(NUM_CLASSES, (number,), generator=dice(seed))
    noise = torch.randn(number, NUM_FEATURES, generator=dice(seed + 10), dtype=torch.float64)
    return centres[labels] + 2 * noise, labels


def dice(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
