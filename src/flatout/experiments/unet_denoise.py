"""A small U-Net that takes the noise out of MNIST's 60,000 + 10,000 real images."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import flatout
from flatout.experiments._pictures import as_images, decode_pictures, read_pictures
from flatout.experiments.mnist import read_images

Pair = tuple[Tensor, Tensor]


def experiment(
    size: Literal["full", "tiny"] = "full",
    lr: float = 2e-3,
    noise: float = 0.5,
    batch_size: int = 128,
    epochs: int = 5,
    samples: int | None = None,
) -> flatout.Experiment:
    """Three resolutions, with a bridge from the way down to the way up at each.

    Args:
        size: `full` has 32 channels at the highest resolution; `tiny` has 8, for machines without
            a GPU.
        lr: learning rate of the first epoch; each later one has half of the one before.
        noise: standard deviation of the noise; white is 1.
        batch_size: images per update.
        epochs: passes over the training images.
        samples: images to train on, and at most that many to validate on; by default all.
    """
    return flatout.Experiment(
        model=lambda: UNet(32 if size == "full" else 8),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=lr),
        schedule=lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5),
        loss=loss,
        metrics=metrics,
        train_data=lambda: NoisyImages("train", noise, samples),
        validation_data=lambda: NoisyImages("t10k", noise, samples),
        batch_size=batch_size,
        epochs=epochs,
        best="psnr",
        unit="images",
        predict=lambda model, noisy: as_images(model(noisy)),
        predict_data=lambda text: read_pictures(text, 28),
        decode=lambda content: decode_pictures(content, 28),
    )


class NoisyImages(torch.utils.data.Dataset[Pair]):
    """Pairs of a noisy and a clean image.

    Training noise is different in each epoch; validation noise is always the same, because flatout
    seeds the generators by epoch and sample.
    """

    def __init__(self, part: str, noise: float, samples: int | None) -> None:
        self.images = read_images(part, samples)[0]
        self.noise = noise

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Pair:
        clean = self.images[index].float() / 255
        return clean + self.noise * torch.randn(clean.shape), clean


class UNet(nn.Module):
    """Predicts the noise, and takes it away."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.at_whole = convolutions(1, width)
        self.at_half = convolutions(width, 2 * width)
        self.at_quarter = convolutions(2 * width, 4 * width)
        self.up_to_half = nn.ConvTranspose2d(4 * width, 2 * width, kernel_size=2, stride=2)
        self.back_at_half = convolutions(4 * width, 2 * width)
        self.up_to_whole = nn.ConvTranspose2d(2 * width, width, kernel_size=2, stride=2)
        self.back_at_whole = convolutions(2 * width, width)
        self.noise = nn.Conv2d(width, 1, kernel_size=1)

    def forward(self, noisy: Tensor) -> Tensor:
        """Noisy images (images, 1, 28, 28) to clean ones."""
        whole = self.at_whole(noisy)
        half = self.at_half(nn.functional.max_pool2d(whole, 2))
        quarter = self.at_quarter(nn.functional.max_pool2d(half, 2))
        half = self.back_at_half(torch.cat([half, self.up_to_half(quarter)], dim=1))
        whole = self.back_at_whole(torch.cat([whole, self.up_to_whole(half)], dim=1))
        clean: Tensor = noisy - self.noise(whole)
        return clean


def convolutions(inside: int, outside: int) -> nn.Module:
    """Two 3 x 3 convolutions that keep the resolution."""
    return nn.Sequential(
        nn.Conv2d(inside, outside, kernel_size=3, padding=1),
        nn.GroupNorm(4, outside),
        nn.SiLU(),
        nn.Conv2d(outside, outside, kernel_size=3, padding=1),
        nn.GroupNorm(4, outside),
        nn.SiLU(),
    )


def loss(model: nn.Module, batch: Pair) -> Tensor:
    noisy, clean = batch
    return mse_loss(model(noisy), clean)


def metrics(model: nn.Module, batch: Pair) -> dict[str, Tensor]:
    """psnr: peak signal-to-noise ratio in dB, of each image by itself; white is 1."""
    noisy, clean = batch
    errors = (model(noisy) - clean).square().mean(dim=(1, 2, 3))
    return {"psnr": (-10 * errors.log10()).mean(), "loss": errors.mean()}
