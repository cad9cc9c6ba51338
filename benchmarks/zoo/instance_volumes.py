"""Volumes of 16 x 32 x 32 voxels through 3-d convolutions and InstanceNorm3d, as for scans."""

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

import flatout


def layer(inside: int, outside: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv3d(inside, outside, kernel_size=3, padding=1, bias=False),
        nn.InstanceNorm3d(outside, affine=True),
        nn.LeakyReLU(0.01),
    )


def volumes() -> tuple[Tensor, Tensor]:
    """A bright box in noise, and where it is."""
    dice = torch.Generator().manual_seed(1)
    corners = torch.randint(8, (64, 3), generator=dice).tolist()
    marks = torch.zeros(64, 1, 16, 32, 32)
    for mark, (depth, row, column) in zip(marks, corners, strict=True):
        mark[:, depth : depth + 8, row : row + 16, column : column + 16] = 1.0
    return marks + torch.randn(marks.shape, generator=dice), marks


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    scans, marks = batch
    return binary_cross_entropy_with_logits(model(scans), marks)


def experiment(width: int = 8, batch_size: int = 2, steps: int = 300) -> flatout.Experiment:
    return flatout.Experiment(
        model=lambda: nn.Sequential(
            layer(1, width),
            layer(width, 2 * width),
            layer(2 * width, width),
            nn.Conv3d(width, 1, kernel_size=1),
        ),  # fmt: skip
        optimizer=lambda parameters: torch.optim.SGD(
            parameters, lr=0.01, momentum=0.99, nesterov=True
        ),
        loss=loss,
        train_data=volumes,
        batch_size=batch_size,
        steps=steps,
        unit="volumes",
    )
