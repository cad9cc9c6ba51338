"""Tensors that may be sharded over ranks (torch's DTensor): this rank's part of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def local_part(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor: all of it, unless it is sharded."""
    # One of torch's distributed tensors, which take a while to import.
    spread: Any = tensor
    with torch.no_grad():
        return spread.to_local() if is_sharded(tensor) else tensor


def is_sharded(tensor: Tensor) -> bool:
    """Whether each rank holds a part of it only."""
    return hasattr(tensor, "to_local")


@torch.no_grad()
def scale(tensors: list[Tensor], factor: Any) -> None:
    """Multiplies tensors in place, unless the factor is known to be 1."""
    if tensors and not (isinstance(factor, float) and factor == 1.0):
        torch._foreach_mul_(tensors, factor)
