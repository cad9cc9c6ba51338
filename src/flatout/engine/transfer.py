"""Tensors that travel between ranks: through gloo on CPUs, through NCCL between GPUs.

NCCL's `wait` only has the stream wait, not the host, and torch would end the whole process where a
transfer takes too long. Here the transfer is given up instead, and whoever sends next looks first
what became of it: so each rank says in words which one it has lost, and is at most one update ahead
of what has arrived. What was computed from a transfer that failed is never saved.

With `exchange=plain` the host waits for nothing that it has sent, and may be farther ahead.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from flatout.system.clock import elapsed_s, sleep_s
from flatout.system.variables import give_up_transfers

# torch 2.13 has given them other names.
_GATHER: Any = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_SCATTER: Any = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


_POLLED_EVERY_S = 0.0005


class Transfer:
    """Sends tensors. Who does has just met the others, so that all send the same.

    is_awaited: the host waits for what was sent before the ranks meet again; else it only looks
        whether something was given up by then.

    Args:
        calling: calls torch.distributed, and says in plain words what goes wrong.
        limit_s: how long the others are waited for.
    """

    def __init__(self, calling: Callable[[Callable[[], Any]], Any], limit_s: float) -> None:
        self._calling = calling
        self._limit_s = limit_s
        # NCCL's, once there is a GPU; gloo's is there from the beginning.
        self._nccl: Any = None
        # What NCCL was given last.
        self._sent: list[Any] = []
        # Whether a rank waits until it has arrived before it meets the others again.
        self.is_awaited = True

    def attach(self, device: torch.device) -> None:
        """Tensors go from GPU to GPU where that is where they are."""
        if device.type == "cuda" and self._nccl is None:
            torch.cuda.set_device(device)
            limit = timedelta(seconds=self._limit_s)
            give_up_transfers()
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
            self._sent = works if self._nccl is not None else []

        self._calling(add)

    def begin_adding(self, tensor: Tensor) -> Any:
        """Begins to replace a tensor by its sum over the ranks; gives what `end_adding` takes."""
        return self._calling(lambda: dist.all_reduce(tensor, group=self._nccl, async_op=True))

    def end_adding(self, work: Any) -> None:
        """The sum is there for what follows: on a GPU for what its stream does next."""
        self._calling(work.wait)

    def settle(self) -> None:
        """Waits until what was sent last has arrived; nothing to do on CPUs, where `wait` does.

        Raises:
            RuntimeError: it has not, within the limit, or what went wrong with it.
        """
        sent, self._sent = self._sent, []
        if not self.is_awaited:
            if self._nccl is not None and (error := self._error()) != "SUCCESS":
                raise RuntimeError(f"NCCL has given up a transfer: {error}")
            return
        since_s = elapsed_s()
        for work in sent:
            # Also once it was given up: then torch's backend knows of an error.
            while not work.is_completed():
                if elapsed_s() - since_s > self._limit_s:
                    raise RuntimeError(f"NCCL has taken more than {self._limit_s:g} s")
                sleep_s(_POLLED_EVERY_S)
        if sent and (error := self._error()) != "SUCCESS":
            raise RuntimeError(f"NCCL has given up a transfer: {error}")

    def _error(self) -> str:
        backend = self._nccl._get_backend(torch.device("cuda"))
        # Before torch 2.7 it did not tell.
        error = backend.get_error() if hasattr(backend, "get_error") else None
        return "SUCCESS" if error is None else str(getattr(error, "name", error))

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
