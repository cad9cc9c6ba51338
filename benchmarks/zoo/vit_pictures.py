"""A vision transformer on 32 x 32 colour pictures: 64 patches, 4 layers of width 96."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import flatout


class PictureViT(nn.Module):
    """Patches, their places, layers of attention, and a classifier of their mean."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, kernel_size=4, stride=4)
        self.places = nn.Parameter(0.02 * torch.randn(1, 64, width))
        layers = [
            nn.TransformerEncoderLayer(
                width, nhead=4, dim_feedforward=4 * width, dropout=0.0, activation="gelu",
                batch_first=True, norm_first=True,
            )
            for _ in range(depth)
        ]  # fmt: skip
        self.layers = nn.Sequential(*layers)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 10))

    def forward(self, pictures: Tensor) -> Tensor:
        """Pictures (pictures, 3, 32, 32) to scores (pictures, 10)."""
        patches = self.patches(pictures).flatten(2).transpose(1, 2)
        return self.head(self.layers(patches + self.places).mean(dim=1))


def pictures() -> tuple[Tensor, Tensor]:
    """Ten colours, each in noise."""
    dice = torch.Generator().manual_seed(1)
    colours = torch.randn(10, 3, 1, 1, generator=dice)
    classes = torch.randint(10, (1_024,), generator=dice)
    noise = torch.randn(1_024, 3, 32, 32, generator=dice)
    return colours[classes] + 2 * noise, classes


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    images, classes = batch
    return cross_entropy(model(images), classes)


def experiment(batch_size: int = 32, steps: int = 500) -> flatout.Experiment:
    return flatout.Experiment(
        model=lambda: PictureViT(width=96, depth=4),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=5e-4, weight_decay=0.05),
        loss=loss,
        train_data=pictures,
        batch_size=batch_size,
        steps=steps,
        unit="pictures",
    )
