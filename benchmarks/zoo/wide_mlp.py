"""Three wide layers: nearly all of the step is in matrix products."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import flatout


def samples() -> tuple[Tensor, Tensor]:
    """Ten patterns of 784 numbers, each in noise."""
    dice = torch.Generator().manual_seed(1)
    patterns = torch.randn(10, 784, generator=dice)
    classes = torch.randint(10, (4_096,), generator=dice)
    return patterns[classes] + 4 * torch.randn(4_096, 784, generator=dice), classes


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    features, classes = batch
    return cross_entropy(model(features), classes)


def experiment(width: int = 1_536, batch_size: int = 128, steps: int = 300) -> flatout.Experiment:
    return flatout.Experiment(
        model=lambda: nn.Sequential(
            nn.Linear(784, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 10),
        ),  # fmt: skip
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
        loss=loss,
        train_data=samples,
        batch_size=batch_size,
        steps=steps,
    )
