"""ResNet-50 on made-up pictures of ImageNet's shape: 224 x 224 pixels, 1,000 classes.

The pictures are noise with a coarse pattern for each class: enough to see that it learns, and as
much work for the machine as real ones in memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, relu

import flatout
from flatout.engine import Confusion, confusion, decayed_groups
from flatout.engine.optim import lr_schedules

# Patterns have 4 x 4 fields.
GRID = 4


@dataclass(frozen=True, kw_only=True)
class ResNetSize:
    """Differences between the sizes. blocks: in each of the four stages."""

    blocks: tuple[int, int, int, int]
    width: int
    num_classes: int
    num_pixels: int


SIZES = {
    "full": ResNetSize(blocks=(3, 4, 6, 3), width=64, num_classes=1_000, num_pixels=224),
    "tiny": ResNetSize(blocks=(1, 1, 1, 1), width=8, num_classes=10, num_pixels=32),
}


def experiment(
    size: Literal["full", "tiny"] = "full",
    lr: float = 0.1,
    batch_size: int = 64,
    epochs: int = 10,
    samples: int = 1_280,
) -> flatout.Experiment:
    """The bottleneck network in version 1.5, trained as is usual on ImageNet.

    Args:
        size: `full` is the real network; `tiny` has one block of an eighth of the width in each
            stage, 32 x 32 pixels and 10 classes, for machines without a GPU.
        lr: largest learning rate for batches of 256, scaled in proportion to smaller or larger
            ones; it is warmed up and falls to 0.
        batch_size: pictures per update.
        epochs: passes over the pictures.
        samples: pictures to train on, 150 KB each at full size; an eighth as many to validate on.
    """
    shape = SIZES[size]
    return flatout.Experiment(
        model=lambda: ResNet(shape),
        named_parameters=True,
        optimizer=lambda named: torch.optim.SGD(
            decayed_groups(named, 1e-4), lr=lr * batch_size / 256, momentum=0.9
        ),
        schedule=lambda optimizer, total_steps: lr_schedules.cosine(
            optimizer, warm_up=total_steps // 20, steps=total_steps
        ),
        schedule_every="step",
        loss=loss,
        metrics=metrics,
        train_data=lambda: make_pictures(shape, samples, seed=1),
        validation_data=lambda: make_pictures(shape, max(samples // 8, batch_size), seed=2),
        batch_size=batch_size,
        epochs=epochs,
        best="accuracy",
        unit="images",
        predict=lambda model, images: model(normalised(images)).softmax(dim=1),
    )


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3 and 1 x 1 convolutions with a shortcut; the 3 x 3 has the stride (v1.5)."""

    def __init__(self, inside: int, width: int, stride: int) -> None:
        super().__init__()
        outside = 4 * width
        widen, last_norm = convolution(width, outside, 1, 1)
        # A block begins as its shortcut (Goyal et al. 2017, section 5.1).
        nn.init.zeros_(last_norm.weight)
        self.convolutions = nn.Sequential(
            *convolution(inside, width, 1, 1),
            nn.ReLU(inplace=True),
            *convolution(width, width, 3, stride),
            nn.ReLU(inplace=True),
            widen,
            last_norm,
        )
        is_changed = stride != 1 or inside != outside
        self.shortcut = (
            nn.Sequential(*convolution(inside, outside, 1, stride)) if is_changed else nn.Identity()
        )

    def forward(self, images: Tensor) -> Tensor:
        """Channels of a picture to channels, four times the width of the block."""
        return relu(self.convolutions(images) + self.shortcut(images))


class ResNet(nn.Module):
    """A stem, four stages of blocks, and a classifier.

    Source: He et al. 2015, "Deep Residual Learning for Image Recognition", table 1.
    """

    def __init__(self, size: ResNetSize) -> None:
        super().__init__()
        layers: list[nn.Module] = [
            *convolution(3, size.width, 7, 2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
        ]
        channels = size.width
        for stage, num_blocks in enumerate(size.blocks):
            width = size.width * 2**stage
            for block in range(num_blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                layers.append(Bottleneck(channels, width, stride))
                channels = 4 * width
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.classifier = nn.Linear(channels, size.num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Pictures (images, 3, height, width) to scores (images, classes)."""
        scores: Tensor = self.classifier(self.features(images))
        return scores


def convolution(
    inside: int, outside: int, kernel_size: int, stride: int
) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
    """A convolution without bias, and its norm."""
    layer = nn.Conv2d(inside, outside, kernel_size, stride, kernel_size // 2, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer, nn.BatchNorm2d(outside)


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    images, labels = batch
    return cross_entropy(model(normalised(images)), labels, label_smoothing=0.1)


def metrics(model: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor | Confusion]:
    images, labels = batch
    scores = model(normalised(images))
    return {
        "accuracy": (scores.argmax(dim=1) == labels).float().mean(),
        "loss": cross_entropy(scores, labels),
        "confusion": confusion(scores, labels),
    }


def normalised(images: Tensor) -> Tensor:
    """Bytes to about -1.7 to 1.7; done batch by batch, so that the data stay small."""
    return (images.float() - 127.5) / 74


def make_pictures(size: ResNetSize, count: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """Pictures (count, 3, pixels, pixels) as bytes, and their classes (count,)."""
    patterns = torch.randint(
        128, (size.num_classes, 3, GRID, GRID), generator=torch.Generator().manual_seed(0)
    )
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(size.num_classes, (count,), generator=random)
    shape = (count, 3, size.num_pixels, size.num_pixels)
    images = torch.randint(128, shape, dtype=torch.uint8, generator=random)
    field = size.num_pixels // GRID
    # In place, since at full size a copy would take hundreds of megabytes.
    fields = images.view(count, 3, GRID, field, GRID, field)
    fields += patterns[labels].to(torch.uint8)[:, :, :, None, :, None]
    return images, labels
