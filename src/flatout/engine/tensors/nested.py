"""Batches of any nesting: tensors inside tuples, lists and dicts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

# A longer list of tensors is a list of samples, not of columns.
_MOST_COLUMNS = 16


def tensors_in(batch: Any) -> Iterator[Tensor]:
    """The tensors of a batch, in a fixed order."""
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, dict):
        for item in batch.values():
            yield from tensors_in(item)
    elif isinstance(batch, list | tuple):
        for item in batch:
            yield from tensors_in(item)


def is_all_tensors(batch: Any) -> bool:
    """Whether there is nothing but tensors in it, all with the same first dimension."""
    if isinstance(batch, Tensor):
        return batch.dim() > 0
    items = list(batch.values()) if isinstance(batch, dict) else batch
    if isinstance(items, list) and len(items) > _MOST_COLUMNS and not isinstance(batch, dict):
        return False
    if not isinstance(items, list | tuple) or not items or not all(map(is_all_tensors, items)):
        return False
    return len({len(tensor) for tensor in tensors_in(batch)}) == 1


def with_tensors(batch: Any, tensors: Iterator[Tensor]) -> Any:
    """The same nesting with other tensors, taken in the order of tensors_in."""
    if isinstance(batch, Tensor):
        return next(tensors)
    if isinstance(batch, dict):
        return {key: with_tensors(item, tensors) for key, item in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(with_tensors(item, tensors) for item in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(with_tensors(item, tensors) for item in batch)
    return batch


def placer(device: torch.device, is_channels_last: bool) -> Callable[[Any], Any] | None:
    """A function that brings a batch from the CPU's memory to the device and layout of the step.

    None if nothing needs to be done, which saves the step the check.
    """
    if device.type == "cpu" and not is_channels_last:
        return None

    def move(batch: Any) -> Any:
        if isinstance(batch, Tensor):
            if is_channels_last and batch.dim() == 4:
                return batch.to(device, non_blocking=True, memory_format=torch.channels_last)
            return batch.to(device, non_blocking=True)
        if isinstance(batch, dict) and type(batch) is dict:
            return {key: move(item) for key, item in batch.items()}
        if isinstance(batch, tuple) and hasattr(batch, "_fields"):
            return type(batch)(*map(move, batch))
        if isinstance(batch, list | tuple):
            return type(batch)(map(move, batch))
        # A tokenizer's batch and the like know themselves how to move.
        return batch.to(device) if hasattr(batch, "to") else batch

    return move
