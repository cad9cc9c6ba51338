"""Small models of many kinds for the gate to judge, each with its data and loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import cross_entropy

NUM_SAMPLES = 80
CLASSES, LENGTH, WORDS = 5, 12, 30


@dataclass(frozen=True)
class Kind:
    """A model with its data and loss. has_norms: batches cannot be split."""

    model: Callable[[], nn.Module]
    data: Callable[[], Any]
    loss: Callable[[nn.Module, Any], Any]
    has_norms: bool = False
    is_sparse: bool = False


def dice() -> torch.Generator:
    return torch.Generator().manual_seed(5)


def points() -> tuple[Tensor, Tensor]:
    random = dice()
    inputs = torch.randn(NUM_SAMPLES, 12, generator=random)
    return inputs, torch.randint(CLASSES, (NUM_SAMPLES,), generator=random)


def pictures() -> tuple[Tensor, Tensor]:
    random = dice()
    images = torch.randint(256, (NUM_SAMPLES, 3, 8, 8), generator=random, dtype=torch.uint8)
    return images, torch.randint(CLASSES, (NUM_SAMPLES,), generator=random)


def volumes() -> tuple[Tensor, Tensor]:
    random = dice()
    cubes = torch.randn(NUM_SAMPLES, 1, 6, 6, 6, generator=random)
    return cubes, torch.randint(CLASSES, (NUM_SAMPLES,), generator=random)


def sentences() -> Tensor:
    """Words (samples, LENGTH); 0 is padding, of unequal length."""
    random = dice()
    words = torch.randint(1, WORDS, (NUM_SAMPLES, LENGTH), generator=random)
    lengths = torch.randint(3, LENGTH + 1, (NUM_SAMPLES, 1), generator=random)
    return words.masked_fill(torch.arange(LENGTH) >= lengths, 0)


def mean_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    inputs, labels = batch
    return cross_entropy(model(inputs), labels)


def sum_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, int]:
    inputs, labels = batch
    return cross_entropy(model(inputs), labels, reduction="sum"), len(labels)


def picture_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    images, labels = batch
    return cross_entropy(model(images.float() / 128 - 1), labels)


def noise_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Predicts noise that is drawn in the loss."""
    clean = batch[0].float() / 128 - 1
    return functional.mse_loss(model(clean + 0.5 * torch.randn_like(clean)), clean)


def word_loss(model: nn.Module, words: Tensor) -> tuple[Tensor, Tensor]:
    inputs, targets = words[:, :-1], words[:, 1:]
    scores = model(inputs).flatten(0, 1)
    total = cross_entropy(scores, targets.flatten(), ignore_index=0, reduction="sum")
    return total, (targets != 0).sum()


def mean_word_loss(model: nn.Module, words: Tensor) -> Tensor:
    """A mean over words: wrong as soon as a batch is split."""
    total, count = word_loss(model, words)
    return total / count


def dense(width: int = 32, dropout: float = 0.0) -> nn.Module:
    return nn.Sequential(
        nn.Linear(12, width), nn.ReLU(), nn.Dropout(dropout),
        nn.Linear(width, width), nn.Tanh(), nn.Linear(width, CLASSES),
    )  # fmt: skip


def convolutional(norm: Callable[[int], nn.Module], dropout: float = 0.0) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False), norm(16), nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1, groups=4), norm(16), nn.SiLU(), nn.MaxPool2d(2),
        nn.Dropout2d(dropout), nn.Flatten(), nn.Linear(256, CLASSES),
    )  # fmt: skip


class Denoiser(nn.Module):
    """Downsampling, upsampling, and a skip connection."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, 12, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(12, 8, 2, stride=2)
        self.out = nn.Conv2d(11, 3, 3, padding=1)

    def forward(self, images: Tensor) -> Tensor:
        inside = functional.gelu(self.up(functional.gelu(self.down(images))))
        out: Tensor = self.out(torch.cat([inside, images], dim=1))
        return out


class Reader(nn.Module):
    """An embedding, a sequence layer, and scores of the next word; weights may be tied."""

    def __init__(self, layer: str, *, is_tied: bool = False, is_sparse: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 24, sparse=is_sparse)
        self.layer = layer
        if layer == "attention":
            self.inside: nn.Module = nn.TransformerEncoderLayer(
                24, 4, 48, dropout=0.1, batch_first=True
            )
        elif layer == "lstm":
            self.inside = nn.LSTM(24, 24, num_layers=2, dropout=0.2, batch_first=True)
        else:
            self.inside = nn.GRU(24, 24, batch_first=True)
        self.norm = nn.LayerNorm(24)
        self.head = nn.Linear(24, WORDS, bias=False)
        if is_tied:
            self.head.weight = self.words.weight

    def forward(self, words: Tensor) -> Tensor:
        hidden = self.words(words)
        if self.layer == "attention":
            length = words.shape[1]
            mask = torch.full((length, length), -torch.inf, device=words.device).triu(1)
            hidden = self.inside(hidden, src_mask=mask.to(hidden.dtype))
        else:
            hidden, _ = self.inside(hidden)
        scores: Tensor = self.head(self.norm(hidden))
        return scores


class Scatter(nn.Module):
    """Sums rows by an index, as graph networks do."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(1, 16), nn.Linear(48, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = torch.relu(self.first(inputs.unsqueeze(2)))
        groups = torch.arange(12, device=inputs.device) % 3
        sums = hidden.new_zeros(len(inputs), 3, 16).index_add_(1, groups, hidden)
        scores: Tensor = self.last(sums.flatten(1))
        return scores


class Branches(nn.Module):
    """A branch in Python, a part that is frozen, a parameter that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(12, 16).requires_grad_(False)
        self.scale = nn.Parameter(torch.ones(()))
        self.unused = nn.Parameter(torch.ones(4))
        self.last = nn.Linear(16, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = torch.tanh(self.frozen(inputs)) * self.scale
        if inputs.shape[1] > 100:
            hidden = hidden + self.unused.sum()
        scores: Tensor = self.last(hidden)
        return scores


def volumetric() -> nn.Module:
    return nn.Sequential(
        nn.Conv3d(1, 8, 3), nn.InstanceNorm3d(8, affine=True), nn.LeakyReLU(),
        nn.Flatten(), nn.Linear(512, CLASSES),
    )  # fmt: skip


def group_norm(width: int) -> nn.Module:
    return nn.GroupNorm(4, width)


KINDS: dict[str, Kind] = {
    "dense": Kind(dense, points, mean_loss),
    "dense with dropout": Kind(lambda: dense(dropout=0.3), points, sum_loss),
    "wide": Kind(lambda: dense(width=160), points, mean_loss),
    "convolutions, BatchNorm": Kind(
        lambda: convolutional(nn.BatchNorm2d, 0.2), pictures, picture_loss, has_norms=True
    ),
    "convolutions, GroupNorm": Kind(lambda: convolutional(group_norm), pictures, picture_loss),
    "U-Net": Kind(Denoiser, pictures, noise_loss),
    "InstanceNorm3d": Kind(volumetric, volumes, mean_loss),
    "attention": Kind(lambda: Reader("attention"), sentences, word_loss),
    "tied attention": Kind(lambda: Reader("attention", is_tied=True), sentences, word_loss),
    "LSTM": Kind(lambda: Reader("lstm"), sentences, word_loss),
    "GRU": Kind(lambda: Reader("gru"), sentences, word_loss),
    "sparse": Kind(lambda: Reader("gru", is_sparse=True), sentences, word_loss, is_sparse=True),
    "scatter": Kind(Scatter, points, mean_loss),
    "branches": Kind(Branches, points, sum_loss),
}
