"""Packed pictures that are unpacked, cut and coloured one by one: the data is the bottleneck."""

import zlib

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate

import flatout

Sample = tuple[Tensor, int]


class PackedPictures(torch.utils.data.Dataset[Sample]):
    """512 pictures of 96 x 96 pixels, packed; each epoch crops and colors them differently."""

    def __init__(self) -> None:
        dice = torch.Generator().manual_seed(1)
        coarse = torch.rand(8, 3, 12, 12, generator=dice)
        patterns = interpolate(coarse, size=96, mode="bilinear") * 200
        self.classes = torch.randint(8, (512,), generator=dice).tolist()
        self.packed = [
            zlib.compress(_noisy(patterns[label], dice).numpy().tobytes()) for label in self.classes
        ]

    def __len__(self) -> int:
        return len(self.packed)

    def __getitem__(self, index: int) -> Sample:
        pixels = bytearray(zlib.decompress(self.packed[index]))
        picture = torch.frombuffer(pixels, dtype=torch.uint8).view(3, 96, 96).float() / 255
        side = int(torch.randint(64, 97, ()))
        top, left = torch.randint(97 - side, (2,)).tolist()
        cut = picture[:, top : top + side, left : left + side].unsqueeze(0)
        scaled = interpolate(cut, size=48, mode="bilinear", antialias=True)[0]
        if torch.rand(()) < 0.5:
            scaled = scaled.flip(2)
        coloured = (scaled * (0.7 + 0.6 * torch.rand(3, 1, 1))).clamp(0, 1)
        return (coloured - 0.45) / 0.22, self.classes[index]


def _noisy(pattern: Tensor, dice: torch.Generator) -> Tensor:
    noise = torch.randint(0, 56, pattern.shape, generator=dice)
    return (pattern + noise).to(torch.uint8)


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    pictures, classes = batch
    return cross_entropy(model(pictures), classes)


def build_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, kernel_size=3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, kernel_size=3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(512, 8),
    )


def experiment(batch_size: int = 16, steps: int = 500) -> flatout.Experiment:
    return flatout.Experiment(
        model=build_model,
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
        loss=loss,
        train_data=PackedPictures,
        batch_size=batch_size,
        steps=steps,
        unit="pictures",
    )
