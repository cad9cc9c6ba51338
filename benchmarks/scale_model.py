"""What benchmarks/scale.py trains: a network with large gradients, on rows in memory."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import flatout

WIDTH, BATCH_SIZE = 1024, 256


def model() -> nn.Module:
    """Four million weights: 16 MB of gradients."""
    return nn.Sequential(
        nn.Linear(256, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH), nn.GELU(),
        nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH), nn.GELU(),
        nn.Linear(WIDTH, 10),
    )  # fmt: skip


def num_gradient_bytes() -> int:
    """Bytes of a step's gradients in fp32."""
    return 4 * sum(one.numel() for one in model().parameters())


def rows() -> tuple[Tensor, Tensor]:
    """10,240 rows (10240, 256) and their classes (10240,)."""
    dice = torch.Generator().manual_seed(1)
    inputs = torch.randn(10_240, 256, generator=dice)
    return inputs, inputs[:, :10].argmax(1)


def loss(network: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """A mean over samples."""
    inputs, labels = batch
    return nn.functional.cross_entropy(network(inputs), labels)


def experiment(steps: int = 120) -> flatout.Experiment:
    """The same for flatout."""
    return flatout.Experiment(
        model=model,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        loss=loss,
        train_data=rows,
        batch_size=BATCH_SIZE,
        steps=steps,
        unit="rows",
    )
