"""Layers whose weights are -1 or 1, with a gradient of their own: a torch.autograd.Function."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear

import flatout


class Sign(torch.autograd.Function):
    """The sign forwards; backwards, the gradient passes where the input is within -1..1."""

    @staticmethod
    def forward(context: Any, values: Tensor) -> Tensor:
        """Any shape to the same."""
        context.save_for_backward(values)
        return torch.where(values < 0, -1.0, 1.0).to(values.dtype)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        """Any shape to the same."""
        (values,) = context.saved_tensors
        return gradient * (values.abs() <= 1)


class BinaryLinear(nn.Linear):
    """A linear layer that computes with the signs of its weights."""

    def forward(self, features: Tensor) -> Tensor:
        """Features (samples, in) to features (samples, out)."""
        scale = self.weight.abs().mean()
        return linear(features, Sign.apply(self.weight) * scale, self.bias)


def samples() -> tuple[Tensor, Tensor]:
    """Ten patterns of 256 numbers, each in noise."""
    dice = torch.Generator().manual_seed(1)
    patterns = torch.randn(10, 256, generator=dice)
    classes = torch.randint(10, (8_192,), generator=dice)
    return patterns[classes] + 3 * torch.randn(8_192, 256, generator=dice), classes


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    features, classes = batch
    return cross_entropy(model(features), classes)


def experiment(width: int = 512, batch_size: int = 128, steps: int = 1_000) -> flatout.Experiment:
    return flatout.Experiment(
        model=lambda: nn.Sequential(
            BinaryLinear(256, width),
            nn.BatchNorm1d(width),
            nn.Hardtanh(),
            BinaryLinear(width, width),
            nn.BatchNorm1d(width),
            nn.Hardtanh(),
            nn.Linear(width, 10),
        ),  # fmt: skip
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
        loss=loss,
        train_data=samples,
        batch_size=batch_size,
        steps=steps,
    )
