"""Tensor files, .npy and .safetensors, as input for a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flatout.errors import UsageError


def read_tensors(text: str) -> Any:
    """The tensors of a .npy or .safetensors file: the default if there is no `predict_data`.

    The numbers stay on disk until they are needed; fp64 is converted to fp32.
    """
    path = Path(text)
    if path.suffix == ".npy":
        import numpy

        # Copy on write: torch requires writable memory.
        array = numpy.load(path, mmap_mode="c", allow_pickle=False)
        return _as_fp32(torch.from_numpy(array))
    if path.suffix == ".safetensors":
        import safetensors.torch

        tensors = {
            name: _as_fp32(tensor) for name, tensor in safetensors.torch.load_file(path).items()
        }
        return next(iter(tensors.values())) if len(tensors) == 1 else tensors
    raise UsageError(
        "input-not-readable",
        f"{text} cannot be read: it is not a .npy or .safetensors file.",
        because="`predict_data` of the experiment says how other inputs are read, and it has none "
        "for this one",
        fix="write it as .npy or .safetensors; or add `predict_data` to the experiment's file and "
        "name that: --experiment FILE",
    )


def _as_fp32(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype == torch.float64 else tensor
