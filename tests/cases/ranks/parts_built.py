"""What each rank of a test runs: builds models in parts, and compares them with whole ones.

parts_built.py FOLDER    writes what rank 0 has found into FOLDER/found.json
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from spread_experiments import Deep, deep
from support.ranks_runs import ranks_here
from torch import Tensor, nn

from flatout.engine.ranks.meta_device_build import has_no_memory
from flatout.engine.ranks.model_layout import ModelLayout
from flatout.engine.runtime import rng
from flatout.engine.session.session import build


class Cached(nn.Module):
    """Buffers of both kinds, one of them drawn; a weight that lies on the CPU whatever is said."""

    def __init__(self) -> None:
        super().__init__()
        self.deep = Deep()
        self.register_buffer("drawn", torch.randn(3))
        self.register_buffer("places", torch.arange(5.0).cos(), persistent=False)
        self.fixed = nn.Parameter(torch.randn(4, 7, device="cpu"), requires_grad=False)
        self.deep.last.weight.note = "kept"  # type: ignore[assignment]


class Reading(nn.Module):
    """Reads the value of a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.deep = Deep()
        self.scale = float(self.deep.last.weight.abs().mean())


class Keeping(nn.Module):
    """Keeps a tensor in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.deep = Deep()
        self.masks = [torch.rand(6)]


class Viewed(nn.Module):
    """A buffer that is a part of another."""

    def __init__(self) -> None:
        super().__init__()
        self.deep = Deep()
        self.register_buffer("all", torch.randn(6))
        self.register_buffer("some", self.all[:2])


def closing() -> nn.Module:
    """A function of it holds a tensor."""
    model, drawn = Deep(), torch.randn(1)
    model.register_forward_hook(lambda module, given, out: out + drawn)
    return model


def reading_optimizer(parameters: Any) -> torch.optim.Optimizer:
    """Reads the weights."""
    kept = list(parameters)
    return torch.optim.SGD(kept, lr=0.1 / float(kept[0].abs().max()))


MODELS: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {
    "deep": (lambda: Deep().double(), {}),
    "cached": (Cached, {}),
    "reading": (Reading, {}),
    "keeping": (Keeping, {}),
    "viewed": (Viewed, {}),
    "closing": (closing, {}),
    "reading optimizer": (Deep, {"optimizer": reading_optimizer}),
}


def drawn_rows() -> tuple[Tensor, Tensor]:
    """Data that is drawn after the model."""
    return torch.randn(20, 6), torch.rand(20, 1)


def named(model: nn.Module) -> dict[str, Tensor]:
    """Weights and buffers, also those that no checkpoint holds."""
    return dict([*model.named_parameters(remove_duplicate=False), *model.named_buffers()])


def found(name: str) -> dict[str, Any]:
    """What building it in parts gives, beside what one rank would have."""
    make, fields = MODELS[name]
    experiment = dataclasses.replace(deep(), model=make, train_data=drawn_rows, **fields)
    built = build(experiment, 3, "cpu", layout=ModelLayout(ranks=ranks, requested="full"))
    assert built.sharding is not None
    whole = built.sharding.whole(named(built.model), is_for_all=True)
    rng.seed_generators(rng.mixed_seed(3, "model"))
    expected = named(make())
    data = drawn_rows()
    differing = [key for key, one in expected.items() if not torch.equal(whole[key], one)]
    differing += [] if whole.keys() == expected.keys() else ["names"]
    same_data = all(map(torch.equal, built.train_data, data))
    own = {
        "differing": differing,
        "same_data": same_data,
        "is_left_empty": has_no_memory(built.model),
        "ties": len(set(map(id, named(built.model).values())))
        == len(set(map(id, expected.values()))),
    }
    return {"ranks": ranks.all_gather(own), "whys": built.sharding.whys_whole}


folder = Path(sys.argv[1])
ranks = ranks_here()
results = {name: found(name) for name in MODELS}
if ranks.is_first:
    (folder / "found.json").write_text(json.dumps(results))
