"""Small pictures of digits and a small network of convolutions: what settings are tried with."""

from typing import Any

import torch
from torch import Tensor, nn

import flatout
from flatout.experiments.digits import read_digits


def build_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.GELU(),
        nn.Conv2d(16, 16, 3, padding=1),
        nn.GELU(),
        nn.Flatten(),
        nn.Linear(1024, 10),
    )


def loss(model: nn.Module, batch: Any) -> Tensor:
    images, labels = batch
    return nn.functional.cross_entropy(model(images), labels)


def experiment(is_read: bool = False) -> flatout.Experiment:
    """The experiment. is_read: from samples, not tensors."""
    images, labels = read_digits(is_test=False)
    samples = list(zip(images, labels, strict=True))
    return flatout.Experiment(
        model=build_model,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=3e-3),
        clip_norm=1.0,
        loss=loss,
        train_data=(lambda: samples) if is_read else (lambda: (images, labels)),
        batch_size=64,
        epochs=2,
    )
