"""Experiments whose ranks need each other within a pass; they too train as one rank does."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Callable
from functools import partial
from itertools import cycle
from typing import Any

import torch
from rank_experiments import Sentences, rows, sentences
from torch import Tensor, nn
from torch.nn.functional import softplus

from flatout.engine import Experiment, Updates

# Five epochs of three updates.
STEPS = 15
FULL = {"sharding": "full"}


class Block(nn.Module):
    """A repeated block, with sizes that no number of ranks divides."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(7, 11), nn.Linear(11, 7, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        out: Tensor = hidden + self.narrow(torch.tanh(self.wide(hidden)))
        return out


class Deep(nn.Module):
    """Blocks between two layers; two of the others share a weight, and one has a single row."""

    def __init__(self, *, norm: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(6, 7)
        self.norm = nn.BatchNorm1d(7) if norm else nn.Identity()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.turn, self.back = nn.Linear(7, 7, bias=False), nn.Linear(7, 7, bias=False)
        self.back.weight = self.turn.weight
        self.last = nn.Linear(7, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.norm(self.first(inputs))
        for block in self.blocks:
            hidden = block(hidden)
        out: Tensor = self.last(self.back(torch.tanh(self.turn(hidden))))
        return out


def _samples(model: nn.Module) -> list[str]:
    drawn = torch.randn(3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    return [f"{value:.6f}" for value in model(drawn).flatten().tolist()]


def deep() -> Experiment:
    """A mean over rows, AdamW, clipping, an average of weights; the last batch has one sample."""
    data = rows().train_data
    return dataclasses.replace(
        rows(),
        model=lambda: Deep().double(),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1),
        train_data=lambda: tuple(column[:81] for column in data()),
        generate=_samples,
        steps=STEPS,
    )


def deep_sentences() -> Experiment:
    """A sum over tokens with noise of its own, momentum, no validation data."""
    return dataclasses.replace(
        sentences(),
        model=lambda: Deep().double(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.02, momentum=0.9),
        train_data=lambda: Sentences(27),
        validation_data=None,
        validate_every="epoch",
        steps=STEPS,
    )


def normed() -> Experiment:
    """BatchNorm that sees the batch of all ranks; a rank has one sample of the last one."""
    data = rows().train_data
    return dataclasses.replace(
        deep(),
        model=lambda: Deep(norm=True).double(),
        train_data=lambda: tuple(column[:83] for column in data()),
        generate=None,
    )


def pair() -> nn.Module:
    """Two networks against each other."""
    draws = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 6))
    judges = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    return nn.ModuleDict({"draws": draws, "judges": judges}).double()


def _optimizers(named: Any) -> dict[str, torch.optim.Optimizer]:
    named = list(named)
    return {
        part: torch.optim.Adam([p for name, p in named if name.startswith(part)], lr=0.01)
        for part in ("draws", "judges")
    }


def _step(updates: Updates, model: Any, batch: Any) -> dict[str, Any]:
    inputs, _ = batch
    drawn = model["draws"](inputs)
    real, fake = model["judges"](inputs), model["judges"](drawn.detach())
    reported = {"judges": updates["judges"](softplus(-real).mean() + softplus(fake).mean())}
    if updates.step % 3:
        reported["draws"] = updates["draws"](softplus(-model["judges"](drawn)).mean())
    distances = (drawn - inputs).detach().square()
    return reported | {"error": (distances.sum(), distances.numel())}


def own_step() -> Experiment:
    """A step of its own with two optimizers, clipped; the last batch has one sample."""
    return dataclasses.replace(
        deep(),
        model=pair,
        optimizer=_optimizers,
        named_parameters=True,
        loss=None,
        step=_step,
        metrics=lambda model, batch: {
            "loss": (model["draws"](batch[0]) - batch[0]).square().mean()
        },
        generate=None,
    )


def with_optimizer(make: Callable[[Any], torch.optim.Optimizer]) -> Experiment:
    """Two epochs with another optimizer."""
    # RAdam is another one from its sixth step on.
    return dataclasses.replace(deep(), optimizer=make, generate=None, steps=6, validate_every=2)


def unlike() -> Experiment:
    """Its ranks do not call the same blocks."""

    class Choosing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.deep = Deep()

        def forward(self, inputs: Tensor) -> Tensor:
            hidden = self.deep.first(inputs)
            chosen = self.deep.blocks[0](hidden) if inputs[0, 0] > 0 else hidden
            out: Tensor = self.deep.last(chosen)
            return out

    return dataclasses.replace(deep(), model=lambda: Choosing().double(), generate=None)


SPREAD: dict[str, tuple[Callable[[], Experiment], dict[str, Any]]] = {
    "deep": (deep, FULL),
    "accumulated": (deep, {**FULL, "micro_batch_size": 6, "activation_checkpointing": True}),
    "sentences": (deep_sentences, {**FULL, "micro_batch_size": 2, "loader_workers": 0}),
    "skipping": (deep, {**FULL, "nonfinite_loss": "skip", "optimizer_implementation": "foreach"}),
    "norms": (normed, {"batch_norm": "synchronized"}),
    "spread_norms": (normed, {**FULL, "batch_norm": "synchronized"}),
    "own_step": (own_step, {}),
}
# Each with what brings all of its state about.
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adam": lambda given: torch.optim.Adam(given, lr=0.01, weight_decay=0.1, amsgrad=True),
    "nadam": lambda given: torch.optim.NAdam(given, lr=0.01, weight_decay=0.1),
    "radam": lambda given: torch.optim.RAdam(given, lr=0.01, weight_decay=0.1),
    "adamax": lambda given: torch.optim.Adamax(given, lr=0.01, weight_decay=0.1),
    "adagrad": lambda given: torch.optim.Adagrad(given, lr=0.1, initial_accumulator_value=0.1),
    "adadelta": lambda given: torch.optim.Adadelta(given, lr=1.0, weight_decay=0.1),
    "rmsprop": lambda given: torch.optim.RMSprop(given, lr=0.01, momentum=0.9, centered=True),
}
SPREAD |= {
    name: (partial(with_optimizer, make), {**FULL, "optimizer_implementation": form})
    for (name, make), form in zip(OPTIMIZERS.items(), cycle(["own", "foreach"]), strict=False)
}
# Those of whole models, each beside the same with gradients that travel beside the backward pass.
PLAIN = {"exchange": "plain"}
SPREAD |= {
    "whole": (deep, {"micro_batch_size": 3, "nonfinite_loss": "skip"}),
    "whole_sentences": (deep_sentences, {"micro_batch_size": 2, "loader_workers": 0}),
}
SPREAD |= {
    f"plain_{name}": (make, {**fixed, **PLAIN})
    for name, (make, fixed) in SPREAD.items()
    if name in ("deep", "accumulated", "sentences", "spread_norms", "norms") or "whole" in name
}
UNLIKE = {"unlike": (unlike, FULL)}


def _failing(fail: Callable[[], None]) -> Experiment:
    """Something happens on the second rank in the fifth of its calls of the loss."""
    experiment = dataclasses.replace(deep(), generate=None)
    known, calls = experiment.loss, 0
    assert known is not None

    def loss(model: nn.Module, batch: Any) -> Any:
        nonlocal calls
        calls += model.training
        if calls == 5 and os.environ.get("RANK") == "1":
            fail()
        return known(model, batch)

    return dataclasses.replace(experiment, loss=loss)


def _short() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def _killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[attr-defined]


def _contrasted(model: nn.Module, batch: Any) -> Tensor:
    """Each sample is compared with all others of its batch, as in CLIP and SimCLR."""
    found, given = model(batch[0]), batch[1]
    alike = -(found - given.t()).square()
    return nn.functional.cross_entropy(alike, torch.arange(len(found)))


def _largest_error(model: nn.Module, batch: Any) -> dict[str, Tensor]:
    return {"loss": (model(batch[0]) - batch[1]).abs().amax()}


def coupled(**fields: Any) -> Experiment:
    """A loss or a metric of a share that is not that of the batch."""
    # Without the sum of ranks' statistics, a share of one sample has none.
    return dataclasses.replace(normed(), train_data=rows().train_data, steps=3, **fields)


COUPLED = {
    "contrasted": (partial(coupled, loss=_contrasted), {}),
    "contrasted_parts": (partial(coupled, loss=_contrasted), FULL),
    "largest_error": (partial(coupled, metrics=_largest_error), {}),
}
SAVED = {"checkpoint_every": 2, **PLAIN}
FAILING = {
    "short_whole": (partial(_failing, _short), SAVED),
    "short_parts": (partial(_failing, _short), {**SAVED, **FULL}),
    "killed_whole": (partial(_failing, _killed), SAVED),
    "killed_parts": (partial(_failing, _killed), {**SAVED, **FULL}),
}
