"""The device that a process computes on."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager

import torch

from flatout.errors import UsageError
from flatout.schema.units import counted_text
from flatout.system.process_env import repeat_products


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
            f"`--device {text}`: no such device here.",
            because=build,
            fix="use --device cpu, or leave it out"
            if not num_gpus
            else f"use cuda:0{'' if num_gpus == 1 else f' to cuda:{num_gpus - 1}'}",
        )
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def prepare_products() -> None:
    """Lets cuBLAS repeat bit for bit in a notebook's process, if nothing has used a GPU there yet.

    cuBLAS reads it when it begins. Only where a notebook calls: a worker gets it from its parent
    process, and the process of a plain loop that is measured must not have it.
    """
    if not torch.cuda.is_initialized():
        repeat_products()


def use_device(device: torch.device) -> None:
    """Makes a GPU the one that torch uses where none is named: for streams, events and graphs."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Makes a context with `use_device`; afterwards torch uses the GPU that it used before."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
