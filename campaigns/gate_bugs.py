"""The planted bugs: the model and the recipe change of each, and its source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from gate_compiled_flaws import flawed_code, flawed_optimizer_code
from gate_flawed_step import flawed_step
from gate_flaws import (
    add_scaler,
    approximate,
    flawed_feed,
    flawed_session,
    recompute_wrongly,
    reseeded,
    round_more,
    schedule_another,
    to_bf16,
    to_bf16_and_back,
    turn_pictures,
    untie,
    untie_silently,
    with_scaler,
    wrong_backward,
)
from gate_graph_flaws import captured
from gate_models import KINDS, Kind, mean_word_loss
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from flatout.engine.experiment import Experiment
from flatout.engine.gate import Maker


class Jittered:
    """Samples fetched one by one, each shifted by a small random number."""

    def __init__(self, data: tuple[Tensor, ...]) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data[0])

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        first, *others = (tensor[index] for tensor in self.data)
        return (first + 0.1 * torch.randn(first.shape), *others)


class OwnDice(Jittered):
    """The same, from a generator of which each worker has a copy."""

    def __init__(self, data: tuple[Tensor, ...]) -> None:
        super().__init__(data)
        self.dice = torch.Generator().manual_seed(0)

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        first, *others = (tensor[index] for tensor in self.data)
        return (first + 0.1 * torch.randn(first.shape, generator=self.dice), *others)


def adamw(named: Any) -> torch.optim.Optimizer:
    """AdamW whose vectors do not decay."""
    named = list(named)
    groups = [
        {"params": [p for _, p in named if p.ndim > 1], "weight_decay": 0.05},
        {"params": [p for _, p in named if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=3e-3)


def nesterov(named: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for _, p in named], lr=0.05, momentum=0.9, nesterov=True)


def adam(named: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam([p for _, p in named], lr=3e-3)


def warm_up(optimizer: torch.optim.Optimizer) -> LambdaLR:
    return LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10))


def experiment_of(kind: Kind, **fields: Any) -> Experiment:
    """An experiment of a kind of model: AdamW, warm-up, clipping, a moving average."""
    given: dict[str, Any] = {
        "model": kind.model,
        "loss": kind.loss,
        "train_data": kind.data,
        "optimizer": adamw,
        "named_parameters": True,
        "batch_size": 16,
        "steps": 100,
        "schedule": warm_up,
        "schedule_every": "step",
        "clip_norm": 1.0,
        "ema": 0.99,
    }
    return Experiment(**(given | fields))


@dataclass(frozen=True)
class Bug:
    """A mistake in how a candidate is carried out.

    hazard: number in the list of known hazards, None for a mutant of our own. kind: of the model.
    changes: the recipe fields that the candidate changes. fields: of the experiment.
    """

    name: str
    hazard: int | None
    kind: str
    changes: dict[str, Any]
    maker: Callable[[], Maker]
    fields: dict[str, Any] = field(default_factory=dict)

    def experiment(self) -> Experiment:
        """The experiment that it is planted in."""
        return experiment_of(KINDS[self.kind], **self.fields)


SPLIT = {"micro_batch_size": 6}
FAST = {"optimizer_implementation": "foreach"}
BF16 = {"precision": "bf16"}
LAYOUT = {"memory_format": "channels_last"}
WORKERS = {"loader_workers": 2}
CODE_OF_OPTIMIZER = {"compiled": "optimizer"}
GRAPH = {"capture": "step", "steps_per_launch": 2}
SPLIT_GRAPH = {**GRAPH, **SPLIT}
DENSE, DROPOUT = "dense", "dense with dropout"
NORMS, READER = "convolutions, BatchNorm", "tied attention"


def _step(name: str, hazard: int | None, kind: str, changes: dict[str, Any], **fields: Any) -> Bug:
    return Bug(name, hazard, kind, changes, lambda: flawed_step(name), fields)


def _scaled(name: str, hazard: int | None, changes: dict[str, Any], **fields: Any) -> Bug:
    return Bug(name, hazard, DENSE, changes, lambda: with_scaler(flawed_step(name)), fields)


def _session(name: str, hazard: int | None, kind: str, changes: dict[str, Any], spoil: Any) -> Bug:
    return Bug(name, hazard, kind, changes, lambda: flawed_session(spoil), {"ema": None})


def _graph(name: str, hazard: int | None, kind: str, changes: Any = GRAPH, **fields: Any) -> Bug:
    return Bug(name, hazard, kind, changes, lambda: captured(name), fields)


def _scaled_graph(name: str) -> Bug:
    return Bug(name, 6, DENSE, GRAPH, lambda: captured(name, add_scaler))


def _code(name: str, hazard: int | None, kind: str, flaw: str) -> Bug:
    return Bug(name, hazard, kind, {"compiled": "loss"}, lambda: flawed_code(flaw))


def _feed(name: str, hazard: int | None, changes: dict[str, Any], kind: str = DENSE) -> Bug:
    data = {"train_data": lambda: Jittered(KINDS[DENSE].data())}
    fields = data if kind == DENSE else {}
    return Bug(name, hazard, kind, changes, lambda: flawed_feed(name), fields)


BUGS = [
    _step("gradients overwritten", 1, DENSE, SPLIT),
    _step("last micro-batch left out", 1, DENSE, SPLIT),
    _session("products rounded more than requested", 2, DENSE, LAYOUT, round_more),
    _step("gradients summed in bf16", 2, DENSE, SPLIT),
    _step("learning rate frozen", 3, DENSE, FAST),
    _step("step count frozen", 3, DENSE, FAST),
    _step("weight decay left out", 3, DENSE, FAST),
    _step("weight decay in every group", None, DENSE, FAST),
    _session("schedule moves another optimizer", 3, DENSE, FAST, schedule_another),
    _step("a gradient is missing", 4, DENSE, LAYOUT),
    _step("a gradient is zero", None, DENSE, LAYOUT),
    _step("same masks in each step", 5, DROPOUT, LAYOUT),
    _step("masks of no generator", 5, DROPOUT, LAYOUT),
    _step("dropout left out", None, DROPOUT, LAYOUT),
    _scaled("scaler's step left out", 6, BF16, clip_norm=None),
    _scaled("gradients not unscaled", 6, BF16),
    _scaled("clipped before unscaling", 6, BF16),
    _scaled("updated by what overflows", 6, FAST, clip_norm=None),
    _scaled("momentum of recycled memory", 6, BF16, optimizer=nesterov, clip_norm=None),
    _step("last batch divided by the size of a whole one", None, DENSE, FAST),
    _step("last batch divided by the size of a whole one", None, DENSE, SPLIT),
    _step("last batch divided by the size of a whole one", None, DENSE, LAYOUT,
          optimizer=nesterov, clip_norm=None),
    _step("last batch left out", None, DENSE, FAST),
    _session("backward pass a thousandth off", 10, DENSE, LAYOUT, wrong_backward),
    _session("tanh by a short formula", 10, DENSE, LAYOUT, approximate),
    Bug("BatchNorm sees micro-batches", 11, NORMS, SPLIT, Maker),
    _step("BatchNorm's averages frozen", 11, NORMS, LAYOUT),
    _step("forward pass made twice", None, NORMS, LAYOUT),
    _step("mean of means", 12, READER, SPLIT),
    Bug("mean of means in the loss", 12, READER, SPLIT, Maker, {"loss": mean_word_loss}),
    _step("loss not divided", 12, DENSE, SPLIT),
    _step("parts weighed alike", 12, DENSE, SPLIT),
    _session("weights in bf16", 15, DENSE, BF16, to_bf16),
    _session("weights stored in bf16", 15, DENSE, BF16, to_bf16_and_back),
    _step("moments in bf16", 15, DENSE, FAST),
    _session("strides of another layout", 16, NORMS, LAYOUT, turn_pictures),
    _step("epsilon too large", 17, DENSE, FAST),
    _step("beta of another optimizer", 17, DENSE, FAST),
    _step("Nesterov left out", 17, DENSE, FAST, optimizer=nesterov),
    _step("decay not decoupled", 17, DENSE, FAST),
    Bug("samples seeded alike", 18, DENSE, WORKERS, lambda: reseeded("alike"),
        {"train_data": lambda: Jittered(KINDS[DENSE].data())}),
    Bug("samples seeded by worker", 18, DENSE, WORKERS, lambda: reseeded("by worker"),
        {"train_data": lambda: Jittered(KINDS[DENSE].data())}),
    Bug("a generator in every worker", 18, DENSE, WORKERS, Maker,
        {"train_data": lambda: OwnDice(KINDS[DENSE].data())}),
    _feed("last batch dropped", 18, WORKERS),
    _feed("a batch read twice", None, WORKERS),
    _feed("two batches exchanged", None, WORKERS),
    _feed("order never changes", None, WORKERS),
    _feed("labels shifted", None, {"data_path": "resident"}, DROPOUT),
    _step("gradients doubled", None, DENSE, FAST, optimizer=adam, clip_norm=None),
    _step("gradients not set to zero", None, DENSE, FAST),
    _step("updated twice", None, DENSE, FAST),
    _step("moments forgotten", None, DENSE, FAST),
    _step("momentum shared", None, DENSE, FAST,
          model=lambda: torch.nn.Sequential(*[torch.nn.Linear(12, 12) for _ in range(3)])),
    _step("not clipped", None, DENSE, FAST),
    _step("clipped before the batch is complete", None, DENSE, SPLIT),
    _step("each gradient clipped by itself", None, DENSE, FAST),
    _step("EMA before the update", None, DENSE, FAST),
    _step("EMA per micro-batch", None, DENSE, SPLIT),
    _step("weights cast once", None, "wide", BF16),
    _session("masks redrawn in recomputation", None, DROPOUT, LAYOUT, recompute_wrongly),
    _session("tied weights apart", None, READER, LAYOUT, untie),
    _session("tied weights apart, one of them frozen", None, READER, LAYOUT, untie_silently),
    _graph("gradients overwritten in the graph", 1, DENSE, SPLIT_GRAPH),
    _graph("learning rate frozen in the graph", 3, DENSE),
    _graph("one rate for all updates of a launch", 3, DENSE),
    _graph("same masks in each replay", 5, DROPOUT),
    _scaled_graph("scale frozen in the graph"),
    _scaled_graph("gradients not unscaled in the graph"),
    _graph("inputs of the recording", None, DENSE),
    _graph("inputs of a launch exchanged", None, DENSE),
    _graph("the rest never launched", None, DENSE),
    _graph("replayed twice", None, NORMS),
    _graph("recording carried out", None, NORMS),
    _graph("average left out of the graph", None, DENSE),
    _graph("not clipped in the graph", None, DENSE, clip_norm=0.01),
    _graph("gradients not set to zero in the graph", None, DENSE),
    _code("compiled code not run", 7, DENSE, "not run"),
    _code("a seed compiled in", 5, DROPOUT, "same masks"),
    _code("draws of the compiler's own", 5, DROPOUT, "own draws"),
    _code("weights compiled in", 10, DENSE, "first weights"),
    _code("BatchNorm's averages lost by the code", 10, NORMS, "buffers frozen"),
    _code("inputs changed by the code", 10, DENSE, "changed inputs"),
    _code("LayerNorm by another variance", 10, READER, "narrow norms"),
    _code("rounded between operators", 10, DENSE, "rounded"),
    Bug("learning rate compiled in", 3, DENSE, CODE_OF_OPTIMIZER,
        lambda: flawed_optimizer_code("lr")),
    Bug("step count compiled in", 3, DENSE, CODE_OF_OPTIMIZER,
        lambda: flawed_optimizer_code("step")),
]  # fmt: skip

# Hazards that cannot occur in an eager step on a CPU, and who looks for them.
NOT_HERE = {
    7: "recompiling until torch gives up: the trial, which compiles as a whole or not at all",
    8: "pinning while a graph is captured: captured candidates",
    9: "memory that captured graphs hold: the measurement of memory",
    13: "tensors kept alive after out-of-memory: the search",
    14: "out-of-memory in the middle of an update: the search",
    19: "cudnn.benchmark choosing otherwise from run to run: recipe field deterministic",
    20: "memory of a GPU moved to the system's: the search",
    21: "a setting without effect: the trial proves its effect",
    22: "ranks that disagree: several GPUs",
}
