"""Handwritten digits, 8 x 8 pixels: 1,797 real images, a few seconds, 97 % and more."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import flatout
from flatout.engine import Confusion, confusion
from flatout.experiments._pictures import decode_pictures, read_pictures

FILE = Path(__file__).parent / "data" / "digits.csv.gz"
NUM_TEST = 360


def experiment(
    lr: float = 5e-3, width: int = 16, batch_size: int = 64, epochs: int = 12
) -> flatout.Experiment:
    """A small convolutional network.

    Args:
        lr: learning rate of the first epoch; each later one has 0.8 of the one before.
        width: channels of the first convolution; the second has twice as many.
        batch_size: images per update.
        epochs: passes over the training images.
    """
    return flatout.Experiment(
        model=lambda: build_model(width),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=lr),
        schedule=lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.8),
        loss=loss,
        metrics=metrics,
        train_data=lambda: read_digits(is_test=False),
        validation_data=lambda: read_digits(is_test=True),
        batch_size=batch_size,
        epochs=epochs,
        best="accuracy",
        unit="images",
        labels=["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"],
        predict_data=lambda text: read_pictures(text, 8),
        decode=lambda content: decode_pictures(content, 8),
    )


def build_model(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, width, kernel_size=3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, kernel_size=3, padding=1, bias=False),
        nn.BatchNorm2d(2 * width),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(2 * width * 4 * 4, 10),
    )


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    images, labels = batch
    return cross_entropy(model(images), labels)


def metrics(model: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor | Confusion]:
    images, labels = batch
    logits = model(images)
    return {
        "accuracy": (logits.argmax(dim=1) == labels).float().mean(),
        "loss": cross_entropy(logits, labels),
        "confusion": confusion(logits, labels),
    }


def read_digits(*, is_test: bool) -> tuple[Tensor, Tensor]:
    """Images in 0..1 (samples, 1, 8, 8) and labels (samples,); the split is always the same."""
    with gzip.open(FILE, "rt", newline="") as file:
        rows = torch.tensor([[int(value) for value in row] for row in csv.reader(file)])
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    chosen = rows[order[:NUM_TEST] if is_test else order[NUM_TEST:]]
    images = chosen[:, :64].float().div(16).reshape(-1, 1, 8, 8)
    return images, chosen[:, 64]
