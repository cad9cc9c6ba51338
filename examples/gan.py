"""Two networks against each other: one draws handwritten digits, one detects drawn ones.

flatout train examples/gan.py
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

import flatout
from flatout.engine import Updates
from flatout.experiments.digits import read_digits

NOISE = 16
SIDE = 8


def model(width: int) -> nn.Module:
    return nn.ModuleDict(
        {
            "generator": nn.Sequential(
                nn.Linear(NOISE, width), nn.BatchNorm1d(width), nn.ReLU(),
                nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(),
                nn.Linear(width, SIDE * SIDE), nn.Sigmoid(),
            ),
            "discriminator": nn.Sequential(
                nn.Linear(SIDE * SIDE, width), nn.LeakyReLU(0.2),
                nn.Linear(width, width), nn.LeakyReLU(0.2), nn.Dropout(0.3),
                nn.Linear(width, 1),
            ),
        }
    )  # fmt: skip


def optimizers(named, lr: float) -> dict[str, torch.optim.Optimizer]:
    """An optimizer for each network, by the first part of its weights' names."""
    named = list(named)
    return {
        part: torch.optim.Adam(
            [weight for name, weight in named if name.startswith(part)], lr=lr, betas=(0.5, 0.99)
        )
        for part in ("generator", "discriminator")
    }


def step(updates: Updates, model: nn.ModuleDict, images: Tensor) -> dict[str, Tensor]:
    """An update of each network; each update reaches the weights of its own network alone."""
    generator, discriminator = model["generator"], model["discriminator"]
    images = images.flatten(1)
    drawn = generator(torch.randn(len(images), NOISE, device=images.device))

    real_scores, drawn_scores = discriminator(images), discriminator(drawn.detach())
    told_apart = softplus(-real_scores).mean() + softplus(drawn_scores).mean()
    losses = {"discriminator": updates["discriminator"](told_apart)}

    # The discriminator has changed: it judges the same drawings again.
    taken_for_real = softplus(-discriminator(drawn)).mean()
    losses["generator"] = updates["generator"](taken_for_real)
    return losses


def metrics(model: nn.ModuleDict, images: Tensor) -> dict[str, Tensor]:
    """How far drawings are from real images, pixel by pixel: in their mean, and in their spread."""
    drawn = model["generator"](torch.randn(1000, NOISE, device=images.device))
    images = images.flatten(1)
    return {
        "mean_error": (drawn.mean(dim=0) - images.mean(dim=0)).abs().mean(),
        "spread_error": (drawn.std(dim=0) - images.std(dim=0)).abs().mean(),
    }


def experiment(width: int = 128, lr: float = 1e-3, epochs: int = 20) -> flatout.Experiment:
    return flatout.Experiment(
        model=lambda: model(width),
        named_parameters=True,
        optimizer=lambda named: optimizers(named, lr),
        step=step,
        metrics=metrics,
        train_data=lambda: read_digits(is_test=False)[0],
        validation_data=lambda: read_digits(is_test=True)[0],
        batch_size=64,
        epochs=epochs,
        best="spread_error",
        ema=0.99,
        unit="images",
    )
