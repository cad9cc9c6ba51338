"""A model of timm by its name, on 96 x 96 colour pictures; `pip install timm` first."""

import timm
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import flatout

# Smaller than timm's own sizes, so that a step on a CPU takes tenths of a second.
SIZE = 96


def pictures() -> tuple[Tensor, Tensor]:
    """Ten colours, each in noise."""
    dice = torch.Generator().manual_seed(1)
    colours = torch.randn(10, 3, 1, 1, generator=dice)
    classes = torch.randint(10, (256,), generator=dice)
    noise = torch.randn(256, 3, SIZE, SIZE, generator=dice)
    return colours[classes] + 2 * noise, classes


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    images, classes = batch
    return cross_entropy(model(images), classes)


def create_model(name: str) -> nn.Module:
    # Only transformers need to know the size of pictures.
    sizes = {"img_size": SIZE} if name.startswith("vit") else {}
    return timm.create_model(name, num_classes=10, **sizes)


def experiment(
    model: str = "resnet18", batch_size: int = 16, steps: int = 500
) -> flatout.Experiment:
    return flatout.Experiment(
        model=lambda: create_model(model),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=5e-4, weight_decay=0.05),
        loss=loss,
        train_data=pictures,
        batch_size=batch_size,
        steps=steps,
        unit="pictures",
    )
