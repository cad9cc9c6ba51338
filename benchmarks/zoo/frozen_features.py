"""A new head on a frozen network: most weights get no gradient."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import flatout


class NewHead(nn.Module):
    """Frozen convolutions, in evaluation mode whatever the rest does, and a head that learns."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.frozen = nn.Sequential(
            nn.Conv2d(3, width, kernel_size=3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, kernel_size=3, padding=1),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
        )
        self.frozen.requires_grad_(False)
        self.head = nn.Sequential(
            nn.Flatten(), nn.Linear(32 * width, 64), nn.ReLU(), nn.Linear(64, 5)
        )

    def train(self, mode: bool = True) -> "NewHead":
        """Only the head is ever in training mode."""
        super().train(mode)
        self.frozen.eval()
        return self

    def forward(self, pictures: Tensor) -> Tensor:
        """Pictures (pictures, 3, 48, 48) to scores (pictures, 5)."""
        return self.head(self.frozen(pictures))


def pictures() -> tuple[Tensor, Tensor]:
    """Five patterns, each in noise."""
    dice = torch.Generator().manual_seed(1)
    patterns = torch.randn(5, 3, 48, 48, generator=dice)
    classes = torch.randint(5, (768,), generator=dice)
    return patterns[classes] + torch.randn(768, 3, 48, 48, generator=dice), classes


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    images, classes = batch
    return cross_entropy(model(images), classes)


def experiment(width: int = 24, batch_size: int = 32, steps: int = 500) -> flatout.Experiment:
    return flatout.Experiment(
        model=lambda: NewHead(width),
        optimizer=lambda parameters: torch.optim.AdamW(
            [one for one in parameters if one.requires_grad], lr=1e-3
        ),
        loss=loss,
        train_data=pictures,
        batch_size=batch_size,
        steps=steps,
        unit="pictures",
    )
