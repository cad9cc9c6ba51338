"""Tensors that travel between ranks: through gloo on CPUs, through NCCL between GPUs.

NCCL's `wait` only has the stream wait, not the host, and torch would end the whole process where a
transfer takes too long. Here the transfer is given up instead, and `settle` says what became of it:
at the vote of each update about the one before, and about everything before ranks tell each other
values, which is also what precedes each checkpoint. So each rank says in words which one it has
lost, and is at most one update ahead of what has arrived. What was computed from a transfer that
failed is never saved.

With `exchange=plain` the host waits for nothing that it has sent, and may be farther ahead.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

from flatout.system.clock import elapsed_s, sleep_s
from flatout.system.process_env import give_up_transfers

# torch 2.13 has given them other names.
_GATHER: Any = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_SCATTER: Any = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)

# Short next to an exchange between GPUs; without a pause it would keep a core busy, which the
# loader could use.
_POLLED_EVERY_S = 0.0005
# A connection that has ended is looked for so often. A rank may have left in good order, with what
# it sent last still on its way to this GPU.
_CHECK_EVERY_S, _ARRIVES_WITHIN_S = 1.0, 3.0


class Collectives:
    """Sends tensors. Who does has just met the others, so that all send the same.

    is_awaited: the host waits for what was sent; else it only looks whether something was given
        up by then.

    Args:
        calling: calls torch.distributed, and says in plain words what goes wrong.
        limit_s: how long the others are waited for.
        has_peer_left: whether a connection to another rank has ended.
    """

    def __init__(
        self,
        calling: Callable[[Callable[[], Any]], Any],
        limit_s: float,
        has_peer_left: Callable[[], bool] = lambda: False,
    ) -> None:
        self._calling = calling
        self._limit_s = limit_s
        self._has_peer_left = has_peer_left
        # NCCL's, once there is a GPU; gloo's is there from the beginning.
        self._nccl: Any = None
        # What NCCL was given last, and last by an update: it ends them in the order of their begin.
        self._newest: Any = None
        self._of_update: Any = None
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

    def add_up(self, tensors: list[Tensor], *, is_update: bool = False) -> None:
        """Replaces tensors by their sums over the ranks.

        Args:
            tensors: the same number on all ranks.
            is_update: they are the gradients of an update, which the next one's vote awaits.
        """

        def add() -> None:
            works = [dist.all_reduce(tensor, group=self._nccl, async_op=True) for tensor in tensors]
            for work in works:
                work.wait()
            if self._nccl is not None and works:
                self._newest = works[-1]
            if is_update:
                self._of_update = self._newest

        self._calling(add)

    def begin_adding(self, tensor: Tensor) -> Any:
        """Begins to replace a tensor by its sum over the ranks; gives what `end_adding` takes."""
        return self._calling(lambda: dist.all_reduce(tensor, group=self._nccl, async_op=True))

    def end_adding(self, work: Any) -> None:
        """The sum is there for what follows: on a GPU for what its stream does next."""
        self._calling(work.wait)

    def settle(self, *, is_all: bool = True) -> None:
        """Waits until what was sent has arrived; nothing to do on CPUs, where `wait` does.

        The ranks have just met: who has died before that was missed there.

        Args:
            is_all: False waits for the newest update alone, and what was sent before it.
        """
        work, self._of_update = self._newest if is_all else self._of_update, None
        if is_all:
            self._newest = None
        if self._nccl is not None:
            self._calling(lambda: self._settle(work))

    def _settle(self, work: Any) -> None:
        """Raises RuntimeError where it has not arrived, or what went wrong with it."""
        if self.is_awaited and work is not None:
            _await(work, self._limit_s, self._has_peer_left)
        if (error := _error_of(self._nccl)) != "SUCCESS":
            raise RuntimeError(f"NCCL aborted a transfer: {error}")

    def abort(self) -> None:
        """Gives up what is under way between GPUs: to leave in good order would wait for it."""
        group, self._nccl = self._nccl, None
        # Before torch 2.6 there was none.
        abort = getattr(distributed_c10d, "_abort_process_group", None)
        if group is not None and abort is not None:
            # This rank is leaving with an error of its own, which says more than that the group was
            # aborted or destroyed already.
            with contextlib.suppress(RuntimeError, ValueError):
                abort(group)

    def copy_from_first(self, tensors: list[Tensor]) -> None:
        """Replaces tensors by the first rank's."""

        def copy() -> None:
            for tensor in tensors:
                dist.broadcast(tensor, src=0, group=self._nccl if tensor.is_cuda else None)

        self._calling(copy)

    def gather(self, output: Tensor, own: Tensor) -> None:
        """Puts the tensors of all ranks one after the other, by rank."""
        self._calling(lambda: _GATHER(output, own, group=self._nccl))

    def scatter_sum(self, output: Tensor, own: Tensor) -> None:
        """Gives each rank its part of the sum of the tensors of all, which are cut by rank."""
        self._calling(lambda: _SCATTER(output, own, group=self._nccl))


def _await(work: Any, limit_s: float, has_peer_left: Callable[[], bool]) -> None:
    since_s = checked_s = elapsed_s()
    left_s: float | None = None
    # It is completed also once it was given up: then torch's backend knows of an error.
    while not work.is_completed():
        now_s = elapsed_s()
        if now_s - since_s > limit_s:
            raise RuntimeError(f"NCCL took more than {limit_s:g} s")
        if left_s is not None and now_s - left_s > _ARRIVES_WITHIN_S:
            raise RuntimeError("a rank closed its connections while NCCL waited for it")
        if left_s is None and now_s - checked_s > _CHECK_EVERY_S:
            checked_s = now_s
            left_s = now_s if has_peer_left() else None
        sleep_s(_POLLED_EVERY_S)


def _error_of(nccl: Any) -> str:
    backend = nccl._get_backend(torch.device("cuda"))
    # Before torch 2.7 it did not tell.
    error = backend.get_error() if hasattr(backend, "get_error") else None
    return "SUCCESS" if error is None else str(getattr(error, "name", error))
