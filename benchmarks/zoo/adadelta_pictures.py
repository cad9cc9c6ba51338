"""The small convolutional network of many a first tutorial, trained by Adadelta."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import flatout


def build_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=3),
        nn.ReLU(),
        nn.Conv2d(16, 32, kernel_size=3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(32 * 12 * 12, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, 10),
    )


def pictures() -> tuple[Tensor, Tensor]:
    """Ten patterns of 28 x 28 pixels as bytes, each in noise."""
    dice = torch.Generator().manual_seed(1)
    patterns = torch.randint(0, 128, (10, 1, 28, 28), generator=dice)
    classes = torch.randint(10, (4_096,), generator=dice)
    noise = torch.randint(0, 128, (4_096, 1, 28, 28), generator=dice)
    return (patterns[classes] + noise).to(torch.uint8), classes


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    images, classes = batch
    return cross_entropy(model(images.float() / 128 - 1), classes)


def experiment(batch_size: int = 64, epochs: int = 8) -> flatout.Experiment:
    return flatout.Experiment(
        model=build_model,
        optimizer=lambda parameters: torch.optim.Adadelta(parameters, lr=1.0),
        schedule=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.7),
        loss=loss,
        train_data=pictures,
        batch_size=batch_size,
        epochs=epochs,
        unit="pictures",
    )
