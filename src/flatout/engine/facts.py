"""What the choice of a recipe needs to know about an experiment, looked up once it is built."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from flatout.engine.activations import repeated_blocks
from flatout.engine.batches import tensors_in
from flatout.engine.experiment import Experiment
from flatout.engine.failures import one_line, raised_at
from flatout.engine.feed import is_in_memory, is_map_style
from flatout.engine.float8 import float8_layers
from flatout.engine.optim import forms_to_capture
from flatout.engine.optimizers import Optimizers
from flatout.engine.person_code import kind_text, place_of
from flatout.errors import UsageError
from flatout.nouns.recipe import Choice, OptimizerImplementation, Sharding
from flatout.nouns.topology import Topology
from flatout.nouns.units import counted_text
from flatout.system.processor import num_usable_cores, num_usable_threads
from flatout.system.topology import read_topology

DataKind = Literal["tensors", "map-style", "iterable"]


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Facts about experiment and device that decide between recipes.

    data_bytes: size of in-memory tensors, None for other kinds of data.
    free_device_bytes: free memory of the GPU, None on a CPU.
    has_volumes: weights or buffers of five dimensions, as those of 3-d convolutions.
    num_blocks: repeated blocks of the model that activation checkpointing can compute again;
        num_moving_blocks: those that it cannot, for their running statistics.
    topology: of the CPUs that the process may use, before any recipe holds.
    num_float8_layers: linear layers whose products can be made in 8 bits.
    forms_to_capture: implementations of the optimizer whose whole update is the device's work.
    num_cores: that this process may use, which it shares with the other ranks of its machine.
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
    sharding: Choice[Sharding] = Choice(value="none", why="one rank holds the whole model")
    num_ranks: int = 1
    num_ranks_here: int = 1


def data_kind(data: Any) -> DataKind:
    """What kind of data a factory returned.

    Raises:
        UsageError: data-of-unknown-kind.
    """
    if is_in_memory(data):
        return "tensors"
    _refuse_arrays(data)
    if isinstance(data, torch.utils.data.DataLoader):
        raise UsageError(
            "data-of-unknown-kind",
            "the data is a DataLoader.",
            because="flatout makes the loader itself: workers and batches belong to the recipe",
            fix="return the loader's dataset, and its collate_fn as `collate`",
        )
    no_dataset = (torch.utils.data.IterableDataset, dict, str, bytes)
    if is_map_style(data) and not isinstance(data, no_dataset):
        _check_length(data)
        return "map-style"
    if hasattr(data, "__iter__") and not isinstance(data, dict | str | bytes):
        return "iterable"
    raise UsageError(
        "data-of-unknown-kind",
        f"the data is {kind_text(data)}: neither tensors, nor a dataset, nor an iterable.",
        because="tensors must share their first dimension; a dataset has __len__ and __getitem__",
        fix=_right_data(data),
    )


def _check_length(data: Any) -> None:
    """Refuses a data set whose number of samples is no number.

    Raises:
        UsageError: data-of-unknown-kind.
    """
    try:
        len(data)
    except (TypeError, ValueError, OverflowError) as error:
        if raised_at(error) is not None:
            raise
        place = place_of(getattr(type(data), "__len__", None))
        raise UsageError(
            "data-of-unknown-kind",
            f"`__len__` of the data gives no number of samples: {one_line(error)}",
            because=place.with_code if place is not None else None,
            fix="return a whole number in `__len__`: half = len(rows) // 2",
        ) from error


def _right_data(data: Any) -> str:
    if data is None:
        return "return the data: is a `return` missing in the function that builds it?"
    if hasattr(data, "__getitem__") and not isinstance(data, dict | str | bytes):
        return "give the data set a `__len__`, which returns the number of its samples"
    return "return one of the three kinds; see flatout docs experiments"


def _refuse_arrays(data: Any) -> None:
    """Refuses tables and tuples that hold no tensors: a tuple would be a data set of its members.

    Raises:
        UsageError: data-of-unknown-kind.
    """
    columns = "torch.tensor(table[column].to_numpy())"
    if hasattr(data, "to_numpy") and hasattr(data, "columns"):
        raise UsageError(
            "data-of-unknown-kind",
            f"the data is {kind_text(data)}: a table is no tensor.",
            fix=f"return tensors of its columns: {columns}",
        )
    if not isinstance(data, tuple) or not data or not all(map(_is_column, data)):
        return
    kinds = ", ".join(type(one).__name__ for one in data)
    if all(isinstance(one, torch.Tensor) for one in data):
        lengths = ", ".join(str(len(one)) if one.dim() else "a number" for one in data)
        raise UsageError(
            "data-of-unknown-kind",
            f"the data is a tuple of tensors of different lengths: {lengths}.",
            because="tensors must share their first dimension, that of the samples",
            fix="return as many targets as inputs",
        )
    raise UsageError(
        "data-of-unknown-kind",
        f"the data is a tuple of {kinds}, not of tensors.",
        fix="make tensors of them: torch.from_numpy(array), or torch.tensor(values)",
    )


def _is_column(one: Any) -> bool:
    is_array = hasattr(one, "__array_interface__") or hasattr(one, "to_numpy")
    return isinstance(one, torch.Tensor | list) or is_array


def check_model(model: Any, experiment: Experiment) -> nn.Module:
    """The model that an experiment has built; refuses what is none.

    Raises:
        UsageError: bad-experiment.
    """
    if isinstance(model, nn.Module):
        return model
    place = place_of(experiment.model)
    fix = "return the model: a torch.nn.Module"
    if isinstance(model, type):
        fix = f"return one: {model.__name__}(...)"
    raise UsageError(
        "bad-experiment",
        f"`model` returned {kind_text(model)}, not a torch.nn.Module.",
        because=place.with_code if place is not None else None,
        fix=fix,
    )


def chosen_device(text: str | None) -> torch.device:
    """The device asked for, or the best one here.

    Raises:
        UsageError: device-not-here.
    """
    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    device = torch.device(text or ("cuda" if num_gpus else "cpu"))
    if device.type == "cuda" and (device.index or 0) >= num_gpus:
        build = f"torch {torch.__version__} sees {counted_text(num_gpus, 'GPU')}"
        raise UsageError(
            "device-not-here",
            f"`--device {text}`: there is no such device here.",
            because=build,
            fix="use --device cpu, or leave it out"
            if not num_gpus
            else f"use cuda:0{'' if num_gpus == 1 else f' to cuda:{num_gpus - 1}'}",
        )
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def use_device(device: torch.device) -> None:
    """Makes a GPU the one that torch uses where none is named: for streams, events and graphs."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


@contextlib.contextmanager
def device_put_back() -> Iterator[None]:
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
) -> Facts:
    """Looks up the facts on a built model, optimizers and data."""
    kind = data_kind(train_data)
    data_bytes = None
    if kind == "tensors":
        data_bytes = sum(t.numel() * t.element_size() for t in tensors_in(train_data))
    modules = list(model.modules())
    blocks = repeated_blocks(model)
    return Facts(
        device=device,
        data_kind=kind,
        data_bytes=data_bytes,
        free_device_bytes=torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None,
        batch_size=experiment.batch_size,
        clip_norm=experiment.clip_norm,
        can_be_fused=optimizers.can_be_fused
        # Embeddings may be told to have sparse gradients, which fused kernels do not take.
        and not any(getattr(module, "sparse", False) for module in modules),
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
        # Of several optimizers none is in a graph.
        forms_to_capture=forms_to_capture(optimizers.only)
        if experiment.step is None and len(optimizers.by_name) == 1
        else (),
    )
