"""MNIST: 70,000 handwritten digits, 28 x 28 pixels; 99 % and more within a minute or two."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import flatout
from flatout.engine import Confusion, confusion, data, dataset
from flatout.experiments._pictures import decode_pictures, read_idx, read_pictures

LABELS = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]


def experiment(
    lr: float = 5e-3,
    width: int = 16,
    batch_size: int = 128,
    epochs: int = 4,
    samples: int | None = None,
    shards: str | None = None,
) -> flatout.Experiment:
    """A small convolutional network.

    Args:
        lr: learning rate of the first epoch; each later one has 0.4 of the one before.
        width: channels of the first convolution; the others have two and four times as many.
        batch_size: images per update.
        epochs: passes over the training images.
        samples: images to train on, and at most that many to validate on; by default all.
        shards: a folder that `flatout ingest` has made of MNIST, in place of its own files.
    """
    return flatout.Experiment(
        model=lambda: build_model(width),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=lr),
        schedule=lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.4),
        loss=loss,
        metrics=metrics,
        train_data=lambda: read_images("train", samples, shards),
        validation_data=lambda: read_images("t10k", samples, shards),
        batch_size=batch_size,
        epochs=epochs,
        best="accuracy",
        unit="images",
        labels=LABELS,
        predict=predict,
        predict_data=lambda text: read_pictures(text, 28),
        decode=lambda content: decode_pictures(content, 28),
    )


def build_model(width: int) -> nn.Module:
    # The first stride halves the image early: most of a convolution's cost is its resolution.
    return nn.Sequential(
        nn.Conv2d(1, width, kernel_size=5, stride=2, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, kernel_size=3, bias=False),
        nn.BatchNorm2d(2 * width),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(2 * width, 4 * width, kernel_size=3, bias=False),
        nn.BatchNorm2d(4 * width),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(4 * width * 3 * 3, 10),
    )


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    images, labels = batch
    return cross_entropy(model(normalised(images)), labels.long())


def metrics(model: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor | Confusion]:
    images, labels = batch
    logits = model(normalised(images))
    return {
        "accuracy": (logits.argmax(dim=1) == labels).float().mean(),
        "loss": cross_entropy(logits, labels.long()),
        "confusion": confusion(logits, labels),
    }


def normalised(images: Tensor) -> Tensor:
    """Bytes to about -0.4 to 2.8; done batch by batch, so that the data set stays 47 MB."""
    return (images.float() / 255 - 0.1307) / 0.3081


def read_images(part: str, samples: int | None, shards: str | None = None) -> tuple[Tensor, Tensor]:
    """Images (samples, 1, 28, 28) and labels (samples,), both as bytes; None takes all."""
    if shards is not None:
        tensors: tuple[Tensor, Tensor] = (
            data.shards(shards).tensors("test" if part == "t10k" else "train").tensors
        )
        return tensors[0][:samples], tensors[1][:samples].byte()
    folder = dataset("mnist")
    images = read_idx(folder / f"{part}-images-idx3-ubyte.gz")
    labels = read_idx(folder / f"{part}-labels-idx1-ubyte.gz")
    return images[:samples].unsqueeze(1), labels[:samples]


def predict(model: nn.Module, pictures: Tensor) -> Tensor:
    """Probabilities of the ten digits for pictures from 0 to 1."""
    scores: Tensor = model(normalised((pictures * 255).round()))
    return scores.softmax(dim=1)
