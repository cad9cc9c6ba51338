"""A ResNet with 13 BatchNorms on 32 x 32 colour pictures."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import flatout


def convolution(inside: int, outside: int, stride: int = 1) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inside, outside, kernel_size=3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(outside),
    )


class Residual(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.first = convolution(inside, outside, stride)
        self.second = convolution(outside, outside)
        self.around = nn.Sequential(
            nn.Conv2d(inside, outside, kernel_size=1, stride=stride, bias=False),
            nn.BatchNorm2d(outside),
        )

    def forward(self, features: Tensor) -> Tensor:
        """Features to features, of 1 / stride the resolution."""
        return (self.second(self.first(features).relu()) + self.around(features)).relu()


def build_model(width: int) -> nn.Module:
    return nn.Sequential(
        convolution(3, width),
        nn.ReLU(),
        Residual(width, width, 1),
        Residual(width, 2 * width, 2),
        Residual(2 * width, 4 * width, 2),
        Residual(4 * width, 4 * width, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, 10),
    )


def pictures() -> tuple[Tensor, Tensor]:
    """Ten patterns, each in noise."""
    dice = torch.Generator().manual_seed(1)
    patterns = torch.randn(10, 3, 32, 32, generator=dice)
    classes = torch.randint(10, (1_024,), generator=dice)
    return patterns[classes] + 2 * torch.randn(1_024, 3, 32, 32, generator=dice), classes


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    images, classes = batch
    return cross_entropy(model(images), classes)


def experiment(width: int = 16, batch_size: int = 32, steps: int = 500) -> flatout.Experiment:
    return flatout.Experiment(
        model=lambda: build_model(width),
        optimizer=lambda parameters: torch.optim.SGD(
            parameters, lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4
        ),
        schedule=lambda optimizer, total_steps: torch.optim.lr_scheduler.CosineAnnealingLR(
            optimizer, total_steps
        ),
        schedule_every="step",
        loss=loss,
        train_data=pictures,
        batch_size=batch_size,
        steps=steps,
        unit="pictures",
    )
