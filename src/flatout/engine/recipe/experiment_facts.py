"""Facts of an experiment for the choice of its recipe, read once it is built."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from flatout.engine.experiment import Experiment
from flatout.engine.feed.data_kind import DataKind, data_kind
from flatout.engine.model.activation_checkpointing import repeated_blocks
from flatout.engine.model.float8 import float8_layers
from flatout.engine.model.sparse_embeddings import sparse_embeddings
from flatout.engine.optim.fused_step import forms_to_capture
from flatout.engine.optim.optimizers import Optimizers
from flatout.engine.runtime.user_code import kind_text, location_of
from flatout.engine.tensors.nested import tensors_in
from flatout.errors import UsageError
from flatout.schema.cpu_topology import Topology
from flatout.schema.recipe import Choice, OptimizerImplementation, Sharding
from flatout.system.cpu_name import num_usable_cores, num_usable_threads
from flatout.system.cpu_topology import read_topology


@dataclass(frozen=True, kw_only=True)
class ExperimentFacts:
    """Facts about experiment and device that decide between recipes.

    data_bytes: size of in-memory tensors, None for other kinds of data.
    free_device_bytes: free memory of the GPU, None on a CPU.
    has_volumes: weights or buffers of five dimensions, as those of 3-d convolutions.
    num_blocks: repeated blocks of the model that activation checkpointing can compute again;
        num_moving_blocks: those that it cannot, for their running statistics.
    topology: of the CPUs that the process may use, before any recipe holds.
    num_float8_layers: linear layers whose products can be made in 8 bits.
    forms_to_capture: implementations of the optimizer whose whole update is the device's work.
    not_captured: what of the experiment keeps its steps out of CUDA graphs, if anything does.
    num_cores: that this process may use, which it shares with the other ranks of its machine.
    has_step_hook: code of the user's runs after every step.
    sharding: how the model is laid out, and why. num_ranks: that train it together; num_ranks_here:
        those of this machine.
    """

    device: torch.device
    data_kind: DataKind
    data_bytes: int | None
    free_device_bytes: int | None
    batch_size: int
    clip_norm: float | None
    can_be_fused: bool
    has_own_step: bool
    num_parameters: int
    has_convolutions: bool
    has_batch_norm: bool
    has_volumes: bool
    num_blocks: int
    num_moving_blocks: int
    num_cores: int
    num_threads: int
    topology: Topology
    num_float8_layers: int = 0
    forms_to_capture: tuple[OptimizerImplementation, ...] = ()
    not_captured: str | None = None
    has_step_hook: bool = False
    sharding: Choice[Sharding] = Choice(value="none", why="a single rank holds the whole model")
    num_ranks: int = 1
    num_ranks_here: int = 1


def check_model(model: Any, experiment: Experiment) -> nn.Module:
    """The model that an experiment has built; refuses what is none.

    Raises:
        UsageError: bad-experiment.
    """
    if isinstance(model, nn.Module):
        return model
    location = location_of(experiment.model)
    fix = "return the model: a torch.nn.Module"
    if isinstance(model, type):
        fix = f"return one: {model.__name__}(...)"
    raise UsageError(
        "bad-experiment",
        f"`model` returned {kind_text(model)}, not a torch.nn.Module.",
        because=location.with_code if location is not None else None,
        fix=fix,
    )


@contextlib.contextmanager
def restored_device() -> Iterator[None]:
    """Puts back which GPU torch uses where none is named."""
    before = torch.cuda.current_device() if torch.cuda.is_initialized() else None
    try:
        yield
    finally:
        if before is not None:
            torch.cuda.set_device(before)


def experiment_facts(
    experiment: Experiment,
    model: nn.Module,
    optimizers: Optimizers,
    train_data: Any,
    device: torch.device,
) -> ExperimentFacts:
    """Looks up the facts on a built model, optimizers and data."""
    kind = data_kind(train_data)
    data_bytes = None
    if kind == "tensors":
        data_bytes = sum(t.numel() * t.element_size() for t in tensors_in(train_data))
    modules = list(model.modules())
    blocks = repeated_blocks(model)
    not_captured = _why_not_captured(experiment, model, optimizers)
    return ExperimentFacts(
        device=device,
        data_kind=kind,
        data_bytes=data_bytes,
        free_device_bytes=torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None,
        batch_size=experiment.batch_size,
        clip_norm=experiment.clip_norm,
        # Fused kernels do not take sparse gradients.
        can_be_fused=optimizers.can_be_fused and not sparse_embeddings(model),
        has_own_step=experiment.step is not None,
        num_parameters=sum(p.numel() for p in model.parameters()),
        has_convolutions=any(isinstance(module, nn.Conv2d) for module in modules),
        has_batch_norm=any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in modules),
        has_volumes=any(t.dim() == 5 for t in (*model.parameters(), *model.buffers())),
        num_blocks=len(blocks.usable),
        num_moving_blocks=len(blocks.with_running_statistics),
        num_cores=num_usable_cores(),
        num_threads=num_usable_threads(torch.get_num_threads()),
        topology=read_topology(),
        num_float8_layers=len(list(float8_layers(model))),
        forms_to_capture=() if not_captured else forms_to_capture(optimizers.only),
        not_captured=not_captured,
    )


def _why_not_captured(
    experiment: Experiment, model: nn.Module, optimizers: Optimizers
) -> str | None:
    if experiment.step is not None:
        return "the experiment's own step decides on the CPU which updates to make"
    if len(optimizers.by_name) > 1:
        return "the experiment has several optimizers"
    if sparse_embeddings(model):
        # Only the GPU knows how many rows their gradients have.
        return "an embedding has sparse=True: its update waits for the GPU"
    return None
