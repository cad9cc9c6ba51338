"""A table of numbers in a CSV file: how much power a wind turbine gives (made-up measurements).

flatout train examples/table.py -s width=128
"""

from __future__ import annotations

import csv
from pathlib import Path

import torch
from torch import Tensor, nn

import flatout

TABLE = Path(__file__).with_name("turbine.csv")


def read_table(is_validation: bool) -> tuple[Tensor, Tensor]:
    """Inputs and target, scaled; every fifth row is kept for validation."""
    with open(TABLE, newline="") as file:
        rows = [[float(cell) for cell in row] for row in list(csv.reader(file))[1:]]
    table = torch.tensor(rows)
    table = (table - table.mean(0)) / table.std(0)
    kept = torch.arange(len(table)) % 5 == 0
    part = table[kept if is_validation else ~kept]
    return part[:, :-1], part[:, -1:]


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    inputs, target = batch
    return nn.functional.mse_loss(model(inputs), target)


def experiment(width: int = 64, lr: float = 3e-3) -> flatout.Experiment:
    return flatout.Experiment(
        model=lambda: nn.Sequential(nn.Linear(3, width), nn.GELU(), nn.Linear(width, 1)),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=lr),
        loss=loss,
        train_data=lambda: read_table(is_validation=False),
        validation_data=lambda: read_table(is_validation=True),
        batch_size=32,
        epochs=40,
        early_stop=10,
        unit="rows",
    )
