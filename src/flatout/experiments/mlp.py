"""A small network on made-up numbers: its steps are so short that only the loop's speed counts."""

from __future__ import annotations

import csv
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import flatout

NUM_FEATURES = 20


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
        model=lambda: nn.Sequential(nn.Linear(NUM_FEATURES, width), nn.ReLU(), nn.Linear(width, 1)),
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=lr),
        loss=loss,
        train_data=lambda: make_rows(rows, seed=1),
        validation_data=lambda: make_rows(rows // 5, seed=2),
        batch_size=batch_size,
        epochs=epochs,
        predict_data=read_rows,
    )


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    features, targets = batch
    return mse_loss(model(features), targets)


def make_rows(count: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """Features (count, 20) and targets (count, 1): a curved function of them, with noise."""
    random = torch.Generator().manual_seed(seed)
    features = torch.randn(count, NUM_FEATURES, generator=random)
    clean = features[:, :5].sin().sum(dim=1) + features[:, 5] * features[:, 6]
    return features, (clean + 0.1 * torch.randn(count, generator=random)).unsqueeze(1)


def read_rows(text: str) -> Tensor:
    """Features (rows, 20) from a CSV file, whose first line may be names, or a .npy file."""
    path = Path(text)
    if path.suffix == ".npy":
        import numpy

        rows = torch.from_numpy(numpy.load(path, allow_pickle=False)).float()
    else:
        with open(path, newline="", encoding="utf-8-sig") as file:
            lines = [line for line in csv.reader(file) if line]
        if lines and not _is_number(lines[0][0]):
            lines = lines[1:]
        rows = torch.tensor([[float(value) for value in line] for line in lines])
    if rows.dim() != 2 or rows.shape[1] != NUM_FEATURES:
        raise ValueError(f"it has rows of shape {tuple(rows.shape[1:])}, not of {NUM_FEATURES}")
    return rows


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
