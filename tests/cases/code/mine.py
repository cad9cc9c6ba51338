"""Small experiments for programs without flatout; each makes use of what the others do not."""

import random
from collections.abc import Iterator
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import flatout

CLASSES = 3


def points(count: int, seed: int) -> tuple[Tensor, Tensor]:
    dice = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 6, generator=dice)
    return inputs, inputs[:, :CLASSES].argmax(dim=1)


def model() -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, CLASSES)
    )


def loss(model: nn.Module, batch: Any) -> Tensor:
    inputs, labels = batch
    return nn.functional.cross_entropy(model(inputs), labels)


def metrics(model: nn.Module, batch: Any) -> dict[str, Any]:
    inputs, labels = batch
    right = model(inputs).argmax(1) == labels
    return {"accuracy": right.float().mean(), "right": (right.sum(), len(right))}


class Augmented:
    """Samples that look different in each epoch, by every generator there is."""

    def __init__(self, count: int, seed: int) -> None:
        self.inputs, self.labels = points(count, seed)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        noise = torch.rand(6) + random.random() + float(numpy.random.rand())
        return self.inputs[index] + 0.1 * noise, self.labels[index]


class Decoded:
    """Samples that take long to read, and are the same each time."""

    def __init__(self, count: int, seed: int) -> None:
        self.inputs, self.labels = points(count, seed)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.inputs[index].sigmoid(), int(self.labels[index])


class Stream:
    """Samples without an index, made as they are asked for."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        for _ in range(self.count):
            sample = torch.randn(6) + 0.1 * self.epoch
            yield sample, int(sample[:CLASSES].argmax())


def stacked(samples: list[Any]) -> list[Tensor]:
    inputs, labels = zip(*samples, strict=True)
    # A collate may draw, too.
    return [torch.stack(inputs) + 0.01 * torch.rand(6), torch.as_tensor(labels)]


def tokens() -> dict[str, Tensor]:
    dice = torch.Generator().manual_seed(3)
    rows = torch.randint(1, 20, (50, 12), generator=dice)
    lengths = torch.randint(2, 13, (50, 1), generator=dice)
    return {"tokens": rows.masked_fill(torch.arange(12) >= lengths, 0)}


def token_loss(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    rows = batch["tokens"]
    scores, targets = model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten()
    total = nn.functional.cross_entropy(scores, targets, ignore_index=0, reduction="sum")
    return total, (targets != 0).sum()


class Attending(nn.Module):
    """Scores of the next token, by causal attention."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(20, 16), nn.Linear(16, 20)

    def forward(self, rows: Tensor) -> Tensor:
        inner = self.embedding(rows)[:, None]
        mixed = nn.functional.scaled_dot_product_attention(inner, inner, inner, is_causal=True)
        return self.head(inner[:, 0] + mixed[:, 0])


class Block(nn.Module):
    """Attends, and forgets some of it: what is computed again must forget the same."""

    def __init__(self) -> None:
        super().__init__()
        self.mixing = nn.Linear(16, 16)

    def forward(self, inner: Tensor) -> Tensor:
        mixed = self.mixing(inner)[:, None]
        mixed = nn.functional.scaled_dot_product_attention(mixed, mixed, mixed, is_causal=True)
        return inner + nn.functional.dropout(mixed[:, 0], 0.2, self.training)


def block_model() -> nn.Module:
    return nn.Sequential(nn.Embedding(20, 16), nn.Sequential(Block(), Block()), nn.Linear(16, 20))


def images() -> list[Tensor]:
    dice = torch.Generator().manual_seed(4)
    return [torch.randn(40, 3, 8, 8, generator=dice), torch.arange(40) % CLASSES]


def image_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(),
        nn.Linear(8 * 64, CLASSES),
    )  # fmt: skip


def broken_loss(model: nn.Module, batch: Any) -> Tensor:
    value = loss(model, batch)
    return value * torch.nan if model.training and (batch[0][0, 0] > 1).item() else value


def with_decay(named: Any) -> torch.optim.Optimizer:
    named = list(named)
    groups = [
        {"params": [p for _, p in named if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for _, p in named if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=0.01)


def rate(step: int) -> float:
    return min(1.0, (step + 1) / 5) / (1 + step / 20)


def fields(case: str) -> dict[str, Any]:
    sgd: dict[str, Any] = {
        "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    }
    if case == "tensors":
        return sgd | {
            "schedule": lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, rate),
            "schedule_every": "step", "clip_norm": 0.5, "ema": 0.9, "early_stop": 2,
            "validation_data": lambda: points(20, seed=2), "metrics": metrics, "best": "accuracy",
        }  # fmt: skip
    if case == "samples":
        return sgd | {
            "train_data": lambda: Augmented(50, seed=1), "validate_every": 5,
            "validation_data": lambda: Augmented(20, seed=2), "early_stop": 4,
            "schedule": lambda optimizer: torch.optim.lr_scheduler.ReduceLROnPlateau(
                optimizer, mode="max", factor=0.5, patience=0
            ),
        }  # fmt: skip
    if case in ("decoded", "collated"):
        validated = {"validation_data": lambda: Decoded(20, seed=2), "metrics": metrics}
        collated = {"collate": stacked} if case == "collated" else {}
        return sgd | {"train_data": lambda: Decoded(50, seed=1)} | validated | collated
    if case == "tokens":
        return {
            "model": Attending,
            "loss": token_loss, "train_data": tokens, "epochs": None, "steps": 17,
            "optimizer": with_decay, "named_parameters": True, "validation_data": tokens,
        }  # fmt: skip
    if case == "stream":
        return {
            "train_data": lambda: Stream(50), "collate": stacked, "epochs": None, "steps": 16,
            "schedule": lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5),
            "validation_data": lambda: Stream(20), "validate_every": 5,
        }  # fmt: skip
    if case == "rows":
        rows = {"train_data": lambda: TensorDataset(*points(50, seed=1))}
        return rows | {"validation_data": lambda: TensorDataset(*points(20, seed=2))}
    if case == "blocks":
        return {
            "model": block_model, "loss": token_loss, "train_data": tokens,
            "validation_data": tokens,
        }  # fmt: skip
    if case == "images":
        return {"model": image_model, "train_data": images, "shuffle": False}
    return {"loss": broken_loss, "ema": 0.5}


def experiment(case: str = "tensors") -> flatout.Experiment:
    plain = {
        "model": model, "loss": loss, "train_data": lambda: points(50, seed=1), "batch_size": 8,
        "epochs": 3, "optimizer": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
    }  # fmt: skip
    return flatout.Experiment(**(plain | fields(case)))
