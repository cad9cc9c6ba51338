"""MNIST with a network far too large for it: 120 million weights, to keep a GPU busy.

The network is that of PyTorch's old MNIST example, enlarged as in the WSL2 benchmark of 2020. Data:
the real 60,000 + 10,000 images.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

import flatout
from flatout.experiments._pictures import decode_pictures, read_pictures
from flatout.experiments.mnist import LABELS, loss, metrics, predict, read_images


def experiment(
    size: Literal["full", "tiny"] = "full",
    lr: float = 1.0,
    batch_size: int = 512,
    epochs: int = 14,
    samples: int | None = None,
) -> flatout.Experiment:
    """Three convolutions and two very large fully connected layers.

    Args:
        size: `full` has 128 channels; `tiny` has 16, for machines without a GPU.
        lr: learning rate of the first epoch; each later one has 0.7 of the one before.
        batch_size: images per update.
        epochs: passes over the training images.
        samples: images to train on, and at most that many to validate on; by default all.
    """
    return flatout.Experiment(
        model=lambda: build_model(128 if size == "full" else 16),
        optimizer=lambda parameters: torch.optim.Adadelta(parameters, lr=lr),
        schedule=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.7),
        loss=loss,
        metrics=metrics,
        train_data=lambda: read_images("train", samples),
        validation_data=lambda: read_images("t10k", samples),
        batch_size=batch_size,
        epochs=epochs,
        best="accuracy",
        unit="images",
        labels=LABELS,
        predict=predict,
        predict_data=lambda text: read_pictures(text, 28),
        decode=lambda content: decode_pictures(content, 28),
    )


def build_model(channels: int) -> nn.Module:
    # 28 x 28 pixels lose 2 in each convolution, and half of the rest in the pool: 11 x 11.
    features = channels * 11 * 11
    return nn.Sequential(
        nn.Conv2d(1, channels, kernel_size=3),
        nn.ReLU(),
        nn.Conv2d(channels, channels, kernel_size=3),
        nn.ReLU(),
        nn.Conv2d(channels, channels, kernel_size=3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(features, features // 2),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(features // 2, 10),
    )
