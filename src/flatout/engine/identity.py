"""What must be the same for a recipe that was found to hold again."""

from __future__ import annotations

import hashlib
from typing import Any

import torch

from flatout import __version__
from flatout.engine.batches import tensors_in
from flatout.engine.session import Built
from flatout.system.processor import driver_name, processor_name


def identity(built: Built, fixed: dict[str, Any]) -> dict[str, Any]:
    """Model, shapes, device and versions, as facts by name."""
    experiment, device = built.experiment, built.device
    return {
        "flatout": __version__,
        "torch": str(torch.__version__),
        "device": _device_name(device),
        "num_cores": built.facts.num_cores,
        "num_threads": built.facts.num_threads,
        "model": _digest(_model_lines(built)),
        "optimizer": _digest(_optimizer_lines(built)),
        "data": built.facts.data_kind,
        "sample": _data_text(built),
        "batch_size": experiment.batch_size,
        "loss": getattr(experiment.loss, "__qualname__", type(experiment.loss).__name__),
        "clip_norm": experiment.clip_norm,
        "ema": experiment.ema,
        "fixed": fixed,
    }


def _model_lines(built: Built) -> list[str]:
    modules = [
        f"{name} {type(module).__qualname__}" for name, module in built.model.named_modules()
    ]
    weights = [
        f"{name} {tuple(weight.shape)} {weight.dtype} {weight.requires_grad}"
        for name, weight in built.model.named_parameters()
    ]
    # Dropout rates, strides and the like are in what a module says of itself.
    return [*modules, *weights, str(built.model)]


def _optimizer_lines(built: Built) -> list[str]:
    # A learning rate changes nothing about the speed.
    flags = [
        {name: str(value) for name, value in group.items() if name not in ("params", "lr")}
        for group in built.optimizers.only.param_groups
    ]
    return [type(built.optimizers.only).__qualname__, *map(str, flags)]


def _data_text(built: Built) -> str:
    """What a sample looks like, as far as that can be told without reading one."""
    data, kind = built.train_data, built.facts.data_kind
    if kind == "tensors":
        return " ".join(f"{tuple(one.shape[1:])} {one.dtype}" for one in tensors_in(data))
    name = type(data).__qualname__
    return f"{name} of {len(data)}" if kind == "map-style" else name


def _digest(lines: list[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        # torch does not tell the driver; its CUDA version and the card's name are what there is.
        return f"{torch.cuda.get_device_name(device)} cuda {torch.version.cuda} {driver_name()}"
    return f"{processor_name()} {torch.backends.cpu.get_cpu_capability()}"
