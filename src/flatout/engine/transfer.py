"""Tensors that travel between ranks: through gloo on CPUs, through NCCL between GPUs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

# torch 2.13 has given them other names.
_GATHER: Any = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_SCATTER: Any = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


class Transfer:
    """Sends tensors. Who does has just met the others, so that all send the same.

    Args:
        calling: calls torch.distributed, and says in plain words what goes wrong.
        limit_s: how long the others are waited for.
    """

    def __init__(self, calling: Callable[[Callable[[], Any]], Any], limit_s: float) -> None:
        self._calling = calling
        self._limit_s = limit_s
        # NCCL's, once there is a GPU; gloo's is there from the beginning.
        self._nccl: Any = None

    def attach(self, device: torch.device) -> None:
        """Tensors go from GPU to GPU where that is where they are."""
        if device.type == "cuda" and self._nccl is None:
            torch.cuda.set_device(device)
            limit = timedelta(seconds=self._limit_s)
            self._nccl = self._calling(lambda: dist.new_group(backend="nccl", timeout=limit))

    @property
    def group(self) -> Any:
        """torch's name for the ranks, where gradients travel."""
        return self._nccl if self._nccl is not None else dist.group.WORLD

    def add_up(self, tensors: list[Tensor]) -> None:
        """Replaces tensors by their sums over the ranks."""

        def add() -> None:
            works = [dist.all_reduce(one, group=self._nccl, async_op=True) for one in tensors]
            for work in works:
                work.wait()

        self._calling(add)

    def copy_from_first(self, tensors: list[Tensor]) -> None:
        """Replaces tensors by the first rank's."""

        def copy() -> None:
            for one in tensors:
                dist.broadcast(one, src=0, group=self._nccl if one.is_cuda else None)

        self._calling(copy)

    def gather(self, output: Tensor, own: Tensor) -> None:
        """Puts the tensors of all ranks one after the other, by rank."""
        self._calling(lambda: _GATHER(output, own, group=self._nccl))

    def scatter_sum(self, output: Tensor, own: Tensor) -> None:
        """Gives each rank its part of the sum of the tensors of all, which are cut by rank."""
        self._calling(lambda: _SCATTER(output, own, group=self._nccl))
