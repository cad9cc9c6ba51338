"""A small vision transformer on MNIST's 60,000 + 10,000 real images."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

import flatout
from flatout.engine import decayed_groups
from flatout.engine.optim import lr_schedules
from flatout.experiments._pictures import decode_pictures, read_pictures
from flatout.experiments.mnist import LABELS, loss, metrics, predict, read_images


def experiment(
    size: Literal["full", "tiny"] = "full",
    lr: float = 1e-3,
    batch_size: int = 128,
    epochs: int = 10,
    samples: int = 60_000,
) -> flatout.Experiment:
    """Pictures as sequences of 49 patches of 4 x 4 pixels.

    Args:
        size: `full` has 6 layers of width 128; `tiny` has 3 of width 64, for machines without a
            GPU.
        lr: largest learning rate; it is warmed up and falls to 0.
        batch_size: images per update.
        epochs: passes over the training images.
        samples: images to train on, and at most that many to validate on.
    """
    depth, width = (6, 128) if size == "full" else (3, 64)
    return flatout.Experiment(
        model=lambda: ViT(depth, width),
        named_parameters=True,
        optimizer=lambda named: torch.optim.AdamW(decayed_groups(named, 0.05), lr=lr),
        schedule=lambda optimizer, total_steps: lr_schedules.cosine(
            optimizer, warm_up=total_steps // 10, steps=total_steps
        ),
        schedule_every="step",
        loss=loss,
        metrics=metrics,
        train_data=lambda: read_images("train", samples),
        validation_data=lambda: read_images("t10k", samples),
        batch_size=batch_size,
        epochs=epochs,
        clip_norm=1.0,
        best="accuracy",
        unit="images",
        labels=LABELS,
        predict=predict,
        predict_data=lambda text: read_pictures(text, 28),
        decode=lambda content: decode_pictures(content, 28),
    )


class ViT(nn.Module):
    """Patches, their places, layers of attention, and a classifier of their mean."""

    def __init__(self, depth: int, width: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, kernel_size=4, stride=4)
        self.places = nn.Parameter(torch.randn(1, 49, width) * 0.02)
        self.layers = nn.Sequential(
            *[
                nn.TransformerEncoderLayer(
                    width, nhead=4, dim_feedforward=2 * width, dropout=0.1, activation="gelu",
                    batch_first=True, norm_first=True,
                )
                for _ in range(depth)
            ]
        )  # fmt: skip
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Images (images, 1, 28, 28) to scores (images, 10)."""
        patches = self.patches(images).flatten(2).transpose(1, 2)
        hidden = self.layers(patches + self.places)
        scores: Tensor = self.head(self.norm(hidden.mean(dim=1)))
        return scores
