"""A custom data set with augmentation: discs and squares in noise, drawn as they are read.

flatout train examples/images.py --use data_path=loader --use loader_workers=2
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import flatout

SIDE = 16


class Shapes(Dataset[tuple[Tensor, Tensor]]):
    """Picture `index` is always the same one; with is_augmented it is seen differently each time.

    What `__getitem__` draws from torch's generator depends on the seed, the epoch and the index
    alone: not on how many workers read, nor on whether the run was interrupted.
    """

    def __init__(self, first: int, count: int, is_augmented: bool) -> None:
        self.first = first
        self.count = count
        self.is_augmented = is_augmented

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        picture, label = draw(self.first + index)
        if self.is_augmented:
            if torch.rand(()) < 0.5:
                picture = picture.flip(-1)
            picture = picture + 0.2 * torch.randn_like(picture)
        return picture, torch.tensor(label)


def draw(number: int) -> tuple[Tensor, int]:
    """A disc (0) or a square (1) of random place and size."""
    dice = torch.Generator().manual_seed(number)
    x, y, radius = (torch.rand(3, generator=dice) * torch.tensor([4, 4, 2])).tolist()
    columns = (torch.arange(SIDE) - x - 6).abs().expand(SIDE, SIDE)
    rows = (torch.arange(SIDE) - y - 6).abs().unsqueeze(1).expand(SIDE, SIDE)
    label = number % 2
    distance = torch.maximum(rows, columns) if label else (rows**2 + columns**2).sqrt()
    return (distance < radius + 3).float().unsqueeze(0), label


def model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(16 * (SIDE // 2) ** 2, 2),
    )  # fmt: skip


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    pictures, labels = batch
    return nn.functional.cross_entropy(model(pictures), labels)


def metrics(model: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    pictures, labels = batch
    return {"accuracy": (model(pictures).argmax(1) == labels).float().mean()}


def experiment(lr: float = 3e-3, epochs: int = 5) -> flatout.Experiment:
    return flatout.Experiment(
        model=model,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=lr),
        schedule=lambda optimizer, total_steps: torch.optim.lr_scheduler.CosineAnnealingLR(
            optimizer, total_steps
        ),
        loss=loss,
        metrics=metrics,
        train_data=lambda: Shapes(first=0, count=1000, is_augmented=True),
        validation_data=lambda: Shapes(first=1000, count=200, is_augmented=False),
        batch_size=32,
        epochs=epochs,
        best="accuracy",
        unit="images",
    )
