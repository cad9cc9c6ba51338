"""A table with numbers, categories and gaps: what a flat costs (made-up, written when missing).

flatout train examples/flats.py -s file=mine.csv

Needs pyarrow: pip install 'flatout[data]'.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn

import flatout
from flatout.engine import data

Batch = tuple[Tensor, Tensor, Tensor]


class Prices(nn.Module):
    """A vector for each category next to the numbers, then two layers."""

    def __init__(self, table: data.Table, width: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(len(table.numbers))
        self.categories = nn.ModuleList(
            nn.Embedding(len(table.vocabularies[name]), 4) for name in table.categories
        )
        num_inputs = len(table.numbers) + 4 * len(table.categories)
        self.layers = nn.Sequential(nn.Linear(num_inputs, width), nn.GELU(), nn.Linear(width, 1))

    def forward(self, numbers: Tensor, codes: Tensor) -> Tensor:
        vectors = [layer(codes[:, place]) for place, layer in enumerate(self.categories)]
        price: Tensor = self.layers(torch.cat([self.norm(numbers), *vectors], 1))
        return price[:, 0]


def loss(model: nn.Module, batch: Batch) -> Tensor:
    numbers, codes, price = batch
    return nn.functional.mse_loss(model(numbers, codes), price)


def experiment(file: str | None = None, width: int = 32, lr: float = 1e-2) -> flatout.Experiment:
    path = Path(file) if file is not None else written_table()
    table = data.csv(path, target="rent", fill={"year": 1970.0})
    return flatout.Experiment(
        model=lambda: Prices(table, width),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=lr),
        loss=loss,
        train_data=lambda: data.split(table, validation=0.2)[0],
        validation_data=lambda: data.split(table, validation=0.2)[1],
        batch_size=32,
        epochs=20,
        unit="flats",
    )


def written_table() -> Path:
    """600 flats, in the folder for temporary files; the year is missing for every tenth."""
    path = Path(tempfile.gettempdir()) / "flatout-flats.csv"
    if not path.exists():
        dice = torch.Generator().manual_seed(0)
        factors = {"centre": 18.0, "edge": 11.0, "park": 15.0}
        lines = ["area_m2,year,district,rent"]
        for number in range(600):
            area, age, chance = torch.rand(3, generator=dice).tolist()
            district = sorted(factors)[number % 3]
            rent = (20 + 100 * area) * factors[district] * (1.2 - 0.4 * age) * (0.95 + 0.1 * chance)
            year = "" if number % 10 == 0 else f"{2020 - 100 * age:.0f}"
            lines.append(f"{20 + 100 * area:.0f},{year},{district},{rent / 1000:.3f}")
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
