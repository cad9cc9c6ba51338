"""Sequences of unequal length: the largest symbol so far. The loss is a mean over tokens.

flatout train examples/sequences.py --use micro_batch_size=16
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

import flatout

NUM_SYMBOLS = 12
PAD = 0
LONGEST = 20


class LargestSoFar(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """Random sequences, and for each place the largest symbol up to there."""

    def __init__(self, first: int, count: int) -> None:
        self.first = first
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        dice = torch.Generator().manual_seed(self.first + index)
        length = int(torch.randint(3, LONGEST + 1, (), generator=dice))
        symbols = torch.randint(1, NUM_SYMBOLS, (length,), generator=dice)
        return symbols, symbols.cummax(0).values


def collate(samples: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Pads the sequences of a batch to the longest of them."""
    inputs, targets = zip(*samples, strict=True)
    return pad_sequence(list(inputs), True, PAD), pad_sequence(list(targets), True, PAD)


class Reader(nn.Module):
    """Reads forwards only, so that the padding behind a sequence does not change its scores."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(NUM_SYMBOLS, width, padding_idx=PAD)
        self.reader = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, NUM_SYMBOLS)

    def forward(self, inputs: Tensor) -> Tensor:
        read, _ = self.reader(self.embedding(inputs))
        scores: Tensor = self.out(read)
        return scores


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """A sum and its count. A mean of means would give short micro-batches too much weight."""
    inputs, targets = batch
    scores = model(inputs).flatten(0, 1)
    total = nn.functional.cross_entropy(
        scores, targets.flatten(), ignore_index=PAD, reduction="sum"
    )
    return total, (targets != PAD).sum()


def metrics(model: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
    inputs, targets = batch
    is_right = (model(inputs).argmax(-1) == targets) & (targets != PAD)
    return {"accuracy": (is_right.sum(), (targets != PAD).sum())}


def grouped_optimizer(named: Iterable[tuple[str, nn.Parameter]], lr: float) -> torch.optim.AdamW:
    """Weight decay on matrices, none on embeddings and biases."""
    decayed: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in named:
        is_decayed = parameter.ndim > 1 and not name.startswith("embedding")
        (decayed if is_decayed else others).append(parameter)
    groups = [
        {"params": decayed, "weight_decay": 0.01},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=lr)


def warmed_up(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    """A learning rate that grows over the first 20 steps and then stays."""
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 20))


def experiment(width: int = 32, lr: float = 5e-3) -> flatout.Experiment:
    return flatout.Experiment(
        model=lambda: Reader(width),
        named_parameters=True,
        optimizer=lambda named: grouped_optimizer(named, lr),
        schedule=warmed_up,
        schedule_every="step",
        loss=loss,
        metrics=metrics,
        train_data=lambda: LargestSoFar(first=0, count=2000),
        validation_data=lambda: LargestSoFar(first=100_000, count=300),
        collate=collate,
        batch_size=64,
        epochs=4,
        best="accuracy",
        ema=0.98,
        clip_norm=1.0,
        unit="sequences",
    )
