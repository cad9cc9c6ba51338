"""Correct candidates, drawn by seed: models, optimizers and data that the gate must accept."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from gate_bugs import Jittered, experiment_of
from gate_flawed_step import flawed_step
from gate_flaws import as_it_is, flawed_session, recompute, with_scaler
from gate_models import KINDS
from torch import Tensor, nn
from torch.optim import lr_scheduler

from flatout.engine.experiment import Experiment
from flatout.engine.gate import Maker
from flatout.engine.model.precision import can_compute_lstm_in_bf16


class Lion(torch.optim.Optimizer):
    """Steps by the sign of an averaged gradient; stands for a custom optimizer.

    Source: Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms", algorithm 2.
    """

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr, "betas": (0.9, 0.99), "weight_decay": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            slow, fast = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                average = self.state[parameter].setdefault("average", torch.zeros_like(parameter))
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                way = average.lerp(parameter.grad, 1 - slow).sign_()
                parameter.add_(way, alpha=-group["lr"])
                average.lerp_(parameter.grad, 1 - fast)


class Streamed:
    """Samples one after another, without an index."""

    def __init__(self, data: tuple[Tensor, ...]) -> None:
        self.data = data

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        return zip(*self.data, strict=True)


Make = Callable[[Any, float], torch.optim.Optimizer]

# Optimizer -> how it is made, and which implementations torch has for it.
OPTIMIZERS: dict[str, tuple[Make, tuple[str, ...]]] = {
    "SGD": (lambda p, lr: torch.optim.SGD(p, lr=10 * lr), ("for-loop", "foreach", "fused")),
    "SGD, Nesterov": (
        lambda p, lr: torch.optim.SGD(p, 10 * lr, 0.9, nesterov=True, weight_decay=1e-4),
        ("for-loop", "foreach", "fused"),
    ),
    "Adam": (lambda p, lr: torch.optim.Adam(p, lr), ("for-loop", "foreach", "fused")),
    "Adam, amsgrad": (
        lambda p, lr: torch.optim.Adam(p, lr, weight_decay=1e-3, amsgrad=True),
        ("for-loop", "foreach", "fused"),
    ),
    "AdamW": (lambda p, lr: torch.optim.AdamW(p, lr), ("for-loop", "foreach", "fused")),
    "AdamW, lr in a tensor": (
        lambda p, lr: torch.optim.AdamW(p, torch.tensor(lr), foreach=False), ("for-loop",)
    ),
    "RMSprop": (lambda p, lr: torch.optim.RMSprop(p, lr, momentum=0.5), ("for-loop", "foreach")),
    "Adagrad": (lambda p, lr: torch.optim.Adagrad(p, lr), ("for-loop", "foreach", "fused")),
    "Adadelta": (lambda p, lr: torch.optim.Adadelta(p, 100 * lr), ("for-loop", "foreach")),
    "Adamax": (lambda p, lr: torch.optim.Adamax(p, lr), ("for-loop", "foreach")),
    "NAdam": (lambda p, lr: torch.optim.NAdam(p, lr), ("for-loop", "foreach")),
    "RAdam": (lambda p, lr: torch.optim.RAdam(p, lr), ("for-loop", "foreach")),
    "Rprop": (lambda p, lr: torch.optim.Rprop(p, lr), ("for-loop", "foreach")),
    "ASGD": (lambda p, lr: torch.optim.ASGD(p, lr), ("for-loop", "foreach")),
    "Adafactor": (lambda p, lr: torch.optim.Adafactor(p, lr), ("for-loop", "foreach")),
    "Lion": (lambda p, lr: Lion(p, lr / 10), ()),
}  # fmt: skip
# They take gradients of embeddings as they come.
_TAKE_SPARSE = ("SGD", "Adagrad")

_SCHEDULES: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "warm-up": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda s: min(1, s / 20)),
    "cosine": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 50),
    "one cycle": lambda optimizer: lr_scheduler.OneCycleLR(
        optimizer, 1e-2, total_steps=200, cycle_momentum=False
    ),
    "exponential": lambda optimizer: lr_scheduler.ExponentialLR(optimizer, 0.9),
    "plateau": lr_scheduler.ReduceLROnPlateau,
}

_MAKERS: dict[str, Callable[[], Maker]] = {
    "": Maker,
    "by hand": lambda: flawed_step(""),
    "loss scaler": lambda: with_scaler(Maker()),
    "loss scaler by hand": lambda: with_scaler(flawed_step("")),
    "recomputation": lambda: flawed_session(recompute),
    "as it is": lambda: flawed_session(as_it_is),
}


@dataclass(frozen=True)
class Clean:
    """A configuration whose candidate computes what the plain step computes."""

    seed: int
    name: str
    experiment: Experiment
    fixed: dict[str, Any]
    changes: dict[str, Any]
    maker: Maker


def configuration(seed: int, *, with_workers: bool = True) -> Clean:
    """The configuration of a seed."""
    dice = random.Random(seed)
    kind_name = dice.choice(list(KINDS))
    kind = KINDS[kind_name]
    names = list(OPTIMIZERS) if not kind.is_sparse else list(_TAKE_SPARSE)
    optimizer_name = dice.choice(names)
    make, implementations = OPTIMIZERS[optimizer_name]
    lr = 10 ** dice.uniform(-4, -2)
    is_named = dice.random() < 0.5
    schedule_name = dice.choice([None, *_SCHEDULES])
    data = kind.data()
    is_fetched = isinstance(data, tuple) and data[0].is_floating_point() and dice.random() < 0.3
    batch_size = dice.choice([4, 7, 8, 16, 32])
    changes = _changes(dice, batch_size, () if kind.is_sparse else implementations)
    if kind_name == "InstanceNorm3d":
        # torch has channels_last for pictures alone.
        changes.pop("memory_format", None)
    if kind.has_norms or batch_size < 4:
        changes.pop("micro_batch_size", None)
    if is_fetched and with_workers and dice.random() < 0.3:
        changes["loader_workers"] = dice.choice([1, 2])
    maker_name = dice.choice(["", "", "", "", *list(_MAKERS)[1:]])
    if kind.is_sparse:
        # Sparse gradients are not clipped in practice, nor their loss scaled.
        maker_name = ""
    if kind.has_norms and maker_name == "recomputation":
        # To compute again moves BatchNorm's averages again.
        maker_name = ""
    fetched = dice.choice([Jittered, Streamed]) if is_fetched else None
    if fetched is Streamed:
        changes.pop("loader_workers", None)
    experiment = experiment_of(
        kind,
        optimizer=lambda given: make(_grouped(given, is_named), lr),
        named_parameters=is_named,
        train_data=lambda: fetched(data) if fetched else data,
        validation_data=kind.data,
        batch_size=batch_size,
        schedule=_SCHEDULES[schedule_name] if schedule_name else None,
        schedule_every="epoch" if schedule_name in (None, "plateau") or dice.random() < 0.3
        else "step",
        clip_norm=None if kind.is_sparse else dice.choice([None, 0.1, 1.0]),
        ema=dice.choice([None, None, 0.9, 0.999]),
        shuffle=dice.random() < 0.8,
    )  # fmt: skip
    fixed = {"num_threads": 1, "loader_workers": 0}
    if dice.random() < 0.1:
        fixed["precision"] = "bf16"
    if "precision" not in changes and dice.random() < 0.1:
        changes["deterministic"] = False
    if kind_name == "LSTM" and not can_compute_lstm_in_bf16():
        fixed, changes = _without_bf16(fixed), _without_bf16(changes) or {"num_threads": 2}
    text = ", ".join(f"{name}={value}" for name, value in changes.items())
    name = f"{kind_name} · {optimizer_name} · {schedule_name or 'no schedule'} · {text}"
    return Clean(
        seed, f"{name} · {maker_name}".rstrip(" ·"), experiment, fixed, changes,
        _MAKERS[maker_name](),
    )  # fmt: skip


def _without_bf16(fields: dict[str, Any]) -> dict[str, Any]:
    """Skips what this CPU does not support; other draws stay as they are."""
    return {name: value for name, value in fields.items() if name != "precision"}


def _changes(
    dice: random.Random, batch_size: int, implementations: tuple[str, ...]
) -> dict[str, Any]:
    """One to three fields of a recipe, changed."""
    possible: dict[str, Any] = {
        "precision": "bf16",
        "memory_format": "channels_last",
        "micro_batch_size": dice.randint(1, max(1, batch_size - 1)),
        "num_threads": 2,
    }
    if implementations:
        possible["optimizer_implementation"] = dice.choice(implementations)
    chosen = dice.sample(list(possible), k=dice.choice([1, 1, 2, 3]))
    return {name: possible[name] for name in chosen}


def _grouped(given: Any, is_named: bool) -> list[dict[str, Any]]:
    """Matrices and the rest in groups of their own, where there are names."""
    if not is_named:
        return [{"params": list(given)}]
    members: list[tuple[str, nn.Parameter]] = list(given)
    groups = [
        [p for _, p in members if p.ndim > 1],
        [p for _, p in members if p.ndim <= 1],
    ]
    return [{"params": group} for group in groups if group]
