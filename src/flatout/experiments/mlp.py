"""A small network on made-up numbers: its steps are so short that only the loop's speed counts."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import flatout


def experiment(
    lr: float = 1e-3,
    width: int = 128,
    rows: int = 5_000,
    batch_size: int = 64,
    epochs: int = 10,
) -> flatout.Experiment:
    """Regression on 20 features.

    Args:
        lr: learning rate.
        width: units of the hidden layer.
        rows: training samples; a fifth as many are made for validation.
        batch_size: samples per update.
        epochs: passes over the training samples.
    """
    return flatout.Experiment(
        model=lambda: nn.Sequential(nn.Linear(20, width), nn.ReLU(), nn.Linear(width, 1)),
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=lr),
        loss=loss,
        train_data=lambda: make_rows(rows, seed=1),
        validation_data=lambda: make_rows(rows // 5, seed=2),
        batch_size=batch_size,
        epochs=epochs,
    )


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    features, targets = batch
    return mse_loss(model(features), targets)


def make_rows(count: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """Features (count, 20) and targets (count, 1): a curved function of them, with noise."""
    random = torch.Generator().manual_seed(seed)
    features = torch.randn(count, 20, generator=random)
    clean = features[:, :5].sin().sum(dim=1) + features[:, 5] * features[:, 6]
    return features, (clean + 0.1 * torch.randn(count, generator=random)).unsqueeze(1)
