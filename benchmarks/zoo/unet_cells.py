"""A U-Net of 3 x 3 convolutions that marks the cells in a 64 x 64 picture."""

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, max_pool2d

import flatout


def double(inside: int, outside: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inside, outside, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Conv2d(outside, outside, kernel_size=3, padding=1),
        nn.ReLU(),
    )


class CellUNet(nn.Module):
    """Two ways down, two ways up, a bridge at each resolution."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.at_whole = double(1, width)
        self.at_half = double(width, 2 * width)
        self.at_quarter = double(2 * width, 4 * width)
        self.up_to_half = nn.ConvTranspose2d(4 * width, 2 * width, kernel_size=2, stride=2)
        self.back_at_half = double(4 * width, 2 * width)
        self.up_to_whole = nn.ConvTranspose2d(2 * width, width, kernel_size=2, stride=2)
        self.back_at_whole = double(2 * width, width)
        self.mark = nn.Conv2d(width, 1, kernel_size=1)

    def forward(self, pictures: Tensor) -> Tensor:
        """Pictures (pictures, 1, 64, 64) to scores of the same shape."""
        whole = self.at_whole(pictures)
        half = self.at_half(max_pool2d(whole, 2))
        quarter = self.at_quarter(max_pool2d(half, 2))
        half = self.back_at_half(torch.cat([half, self.up_to_half(quarter)], dim=1))
        whole = self.back_at_whole(torch.cat([whole, self.up_to_whole(half)], dim=1))
        return self.mark(whole)


def cells() -> tuple[Tensor, Tensor]:
    """Three bright discs in each noisy picture, and where they are."""
    dice = torch.Generator().manual_seed(1)
    centres = torch.rand(256, 3, 2, 1, 1, generator=dice) * 64
    places = torch.stack(torch.meshgrid(torch.arange(64), torch.arange(64), indexing="ij"))
    distances = (places - centres).square().sum(dim=2).sqrt()
    marks = (distances < 8).any(dim=1, keepdim=True).float()
    return marks + 0.5 * torch.randn(marks.shape, generator=dice), marks


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    pictures, marks = batch
    return binary_cross_entropy_with_logits(model(pictures), marks)


def experiment(width: int = 16, batch_size: int = 8, steps: int = 500) -> flatout.Experiment:
    return flatout.Experiment(
        model=lambda: CellUNet(width),
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
        loss=loss,
        train_data=cells,
        batch_size=batch_size,
        steps=steps,
        unit="pictures",
    )
