"""Four small trainings, each hard on a different part of an interrupted step."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from flatout.engine import Experiment

NUM_SAMPLES, BATCH_SIZE, EPOCHS = 42, 8, 2

# Recipe fields of those that need some.
USE: dict[str, dict[str, Any]] = {"accumulation": {"micro_batch_size": 4}}


def points(count: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """Points (count, 6) and their classes (count,)."""
    dice = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 6, generator=dice)
    return inputs, inputs[:, :3].argmax(dim=1)


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """A mean over samples."""
    inputs, labels = batch
    return cross_entropy(model(inputs), labels)


def mixed_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """A mean over samples that are mixed by draws from all three libraries."""
    inputs, labels = batch
    share = float(np.random.uniform(0.7, 1.0)) * random.uniform(0.9, 1.0)
    order = torch.randperm(len(inputs))
    scores = model(share * inputs + (1 - share) * inputs[order])
    mixed = share * cross_entropy(scores, labels, reduction="none")
    return (mixed + (1 - share) * cross_entropy(scores, labels[order], reduction="none")).mean()


def counted_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """A sum over tokens, whose number varies by sample."""
    inputs, labels = batch
    weights = (inputs[:, 0] > 0).float() + 1
    return (cross_entropy(model(inputs), labels, reduction="none") * weights).sum(), weights.sum()


class Block(nn.Module):
    """A part that activation checkpointing can recompute."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.linear(hidden).relu()


def _normed() -> nn.Module:
    blocks = nn.Sequential(Block(), Block())
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), blocks, nn.Linear(16, 3))


def _plain() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))


def _dropped() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))


def experiment(name: str, train_loss: Any = None) -> Experiment:
    """One of the four: `plain`, `batchnorm`, `dropout` or `accumulation`.

    Args:
        name: which.
        train_loss: in place of its own.
    """
    own: dict[str, Any] = {
        "plain": {"model": _plain, "loss": loss},
        "batchnorm": {"model": _normed, "loss": loss},
        "dropout": {"model": _dropped, "loss": mixed_loss},
        "accumulation": {
            "model": _plain,
            "loss": counted_loss,
            "ema": 0.9,
            "clip_norm": 0.5,
            "schedule": lambda optimizer: torch.optim.lr_scheduler.LinearLR(
                optimizer, 0.1, total_iters=20
            ),
            "schedule_every": "step",
        },
    }[name]
    changed = {} if train_loss is None else {"loss": train_loss(own["loss"])}
    return Experiment(
        **(own | changed),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
        train_data=lambda: points(NUM_SAMPLES, seed=1),
        validation_data=lambda: points(20, seed=2),
        batch_size=BATCH_SIZE,
        epochs=EPOCHS,
    )


NAMES = ("plain", "batchnorm", "dropout", "accumulation")
