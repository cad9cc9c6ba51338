"""What each rank of a test runs: builds models in parts, and compares them with whole ones.

parts_built.py FOLDER    writes what rank 0 has found into FOLDER/found.json; under Linux also by
                         what the ranks' memory grows as they build and resume a larger model
"""

from __future__ import annotations

import ctypes
import dataclasses
import gc
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
from flatout.engine.session.session import Session, build
from flatout.engine.session.state import state_of, take_over
from flatout.system.exit_code import end


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


def large() -> nn.Module:
    """Eight blocks of 8 MiB."""
    return nn.Sequential(*(nn.Sequential(nn.Linear(1024, 2048, bias=False)) for _ in range(8)))


def memory_grown() -> dict[str, list[int]]:
    """Bytes by which each rank's resident memory grows at most: by building, and by a resume."""
    experiment = dataclasses.replace(
        deep(), model=large, loss=lambda model, batch: model(batch).mean(), validation_data=None,
        ema=None, clip_norm=None, generate=None,
    )  # fmt: skip
    built, to_build = _growth(
        lambda: build(experiment, 3, "cpu", layout=ModelLayout(ranks=ranks, requested="full"))
    )
    session = Session(built, built.recipe({"num_threads": 1}), ranks)
    stored = state_of(session, is_for_all=True)
    # As AdamW keeps moments of a weight after its first update.
    stored["optimizer"]["state"] = {
        index: {
            "step": torch.ones(()), "exp_avg": torch.zeros(2048, 1024),
            "exp_avg_sq": torch.zeros(2048, 1024),
        }
        for index in range(8)
    }  # fmt: skip
    _, to_resume = _growth(lambda: take_over(session, stored))
    session.close()
    return {"built": ranks.all_gather(to_build), "resumed": ranks.all_gather(to_resume)}


def _growth(act: Callable[[], Any]) -> tuple[Any, int]:
    """What a call returns, and by how many bytes the process' peak is above what it was before."""
    gc.collect()
    # What was freed before would be used again, and not be seen. (torch's Linux builds need glibc.)
    ctypes.CDLL(None).malloc_trim(0)
    # From now on, the kernel counts the peak anew.
    Path("/proc/self/clear_refs").write_text("5")
    before = _read_memory("VmRSS")
    made = act()
    return made, _read_memory("VmHWM") - before


def _read_memory(name: str) -> int:
    [line] = [
        line for line in Path("/proc/self/status").read_text().splitlines() if f"{name}:" in line
    ]
    return 1024 * int(line.split()[1])


folder = Path(sys.argv[1])
ranks = ranks_here()
results: dict[str, Any] = {name: found(name) for name in MODELS}
if sys.platform == "linux":
    results["memory"] = memory_grown()
if ranks.is_first:
    (folder / "found.json").write_text(json.dumps(results))
end(0)
