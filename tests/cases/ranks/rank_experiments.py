"""Small experiments that one rank and several must train alike; each says what it is to find."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from flatout.engine import Experiment

STEPS = 90


def _rows(count: int, seed: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    dice = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 6, generator=dice, dtype=torch.float64)
    targets = torch.sin(inputs.sum(1, keepdim=True)) + 0.1 * inputs[:, :1]
    return inputs.to(dtype), targets.to(dtype)


def _net(dtype: torch.dtype, *, norm: bool = False) -> nn.Module:
    hidden: list[nn.Module] = [nn.BatchNorm1d(16)] if norm else []
    return nn.Sequential(nn.Linear(6, 16), *hidden, nn.Tanh(), nn.Linear(16, 1)).to(dtype)


def _mean(model: nn.Module, batch: Any) -> Tensor:
    inputs, targets = batch
    return nn.functional.mse_loss(model(inputs), targets)


def rows(dtype: torch.dtype = torch.float64) -> Experiment:
    """Tensors, momentum, clipping, an average of the weights; the last batch is a partial one."""
    return Experiment(
        model=lambda: _net(dtype),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.02, momentum=0.9),
        loss=_mean,
        train_data=lambda: _rows(205, 1, dtype),
        validation_data=lambda: _rows(37, 2, dtype),
        batch_size=40,
        steps=STEPS,
        validate_every=1,
        clip_norm=0.5,
        ema=0.9,
    )


class Sentences(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """Sequences of unequal length, with noise of their own in each epoch."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        dice = torch.Generator().manual_seed(index)
        length = int(torch.randint(1, 9, (), generator=dice))
        inputs = torch.randn(8, 6, generator=dice, dtype=torch.float64)
        inputs += 0.01 * torch.randn(8, 6, dtype=torch.float64)
        return inputs, torch.arange(8) < length


def _sum(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    inputs, is_there = batch
    wrong = (model(inputs) - torch.sin(inputs.sum(2, keepdim=True))).square().squeeze(2)
    return (wrong * is_there).sum(), is_there.sum()


def sentences() -> Experiment:
    """A sum over tokens, a loader, Adam, a schedule by steps; the last batch has 3 samples."""
    return Experiment(
        model=lambda: _net(torch.float64),
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.01),
        loss=_sum,
        train_data=lambda: Sentences(55),
        validation_data=lambda: Sentences(21),
        schedule=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 20, 0.7),
        schedule_every="step",
        batch_size=13,
        steps=STEPS,
        validate_every=3,
    )


class Stream:
    """The same sentences as an iterable."""

    def __iter__(self) -> Any:
        return (Sentences(40)[index] for index in range(40))


def stream() -> Experiment:
    """An iterable, which each rank reads in full."""
    return dataclasses.replace(
        sentences(), train_data=Stream, steps=30, validate_every=1, batch_size=9
    )


def frozen() -> Experiment:
    """A weight that only some samples use: a share may have no gradient for it."""

    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk, self.side = nn.Linear(6, 1), nn.Linear(6, 1)

        def forward(self, inputs: Tensor) -> Tensor:
            out: Tensor = self.trunk(inputs)
            is_side = inputs[:, 0] > 1.2
            return out + self.side(inputs) * is_side.unsqueeze(1) if is_side.any() else out

    return dataclasses.replace(
        rows(),
        model=lambda: Branches().double(),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.3),
        batch_size=5,
        steps=60,
        clip_norm=None,
    )


def first_gradient() -> Experiment:
    """One step whose change of the weights is the gradient, in fp32."""
    return dataclasses.replace(
        rows(torch.float32),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1.0),
        steps=1,
        clip_norm=None,
        ema=None,
    )


def norm() -> Experiment:
    """BatchNorm, which sees each rank's share: means of equal shares have the batch's mean."""
    return dataclasses.replace(
        rows(), model=lambda: _net(torch.float64, norm=True), steps=1, ema=None
    )


ALL: dict[str, tuple[Callable[[], Experiment], dict[str, Any]]] = {
    "rows": (rows, {}),
    "accumulated": (rows, {"micro_batch_size": 7}),
    "sentences": (sentences, {"micro_batch_size": 4, "loader_workers": 0}),
    "stream": (stream, {"loader_workers": 0, "micro_batch_size": 2}),
    "frozen": (frozen, {}),
    "first_gradient": (first_gradient, {}),
    "norm": (norm, {}),
}
