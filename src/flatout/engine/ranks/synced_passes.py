"""Passes through the model that all ranks make together, because they exchange something within.

A model that is spread over the ranks gathers the weights of each block from all of them, and sends
back the gradients; a BatchNorm may want the statistics of all. Then every rank must go through the
model as often as the others: one that has fewer micro-batches repeats its last one, and one without
a sample takes some of the first rank's. What is made of these counts for nothing.

Every such exchange begins with a meeting (see MultiRank): so a rank whose memory runs out is heard
wherever the others are, and a diverged rank gets an error instead of waiting forever.
That costs a few numbers through gloo for each exchange, and with `exchange=plain` it is left out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor

from flatout.engine.feed.feed import MicroBatch
from flatout.engine.ranks.process_group import MultiRank, StepFlags
from flatout.engine.tensors.nested import placer, tensors_in, with_tensors
from flatout.engine.tensors.state_tree import compact

# Votes of exchanges within a pass differ from those of updates, which count from 0.
_PASSES = -1.0
_GATHER, _SCATTER, _ADD_UP = -2.0, -3.0, -4.0
_NUM_KINDS = 4


class SyncedPasses:
    """Keeps the ranks together within a pass.

    is_agreed: whether they meet before each exchange.
    is_filler: the pass under way is one for the others' sake alone. size: how many ranks there are.
    are_norms_shared: a pass moves the averages of all ranks' norms alike, one that fills up, too.

    Args:
        group: the ranks.
        is_agreed: see above.
    """

    def __init__(self, group: MultiRank, *, is_agreed: bool = True) -> None:
        self._group = group
        self.is_agreed = is_agreed
        self.size = group.size
        self.is_filler = False
        self.are_norms_shared = False

    def evened(self, update: list[MicroBatch]) -> list[MicroBatch]:
        """As many micro-batches as every other rank has; those that fill up have 0 samples."""
        all_flags = self._group.all_reduce_flags(
            StepFlags(sync_point=_PASSES, num_samples=len(update))
        )
        counts = [round(flags.num_samples) for flags in all_flags]
        filler = update[-1][0] if update else None
        if min(counts) == 0:
            shared = self._group.broadcast_from_rank0(lambda: _on_host(filler), about="filler")
            filler = filler if update else _on_device(shared, self._group)
        return [*update, *[(filler, 0)] * (max(counts) - len(update))]

    @contextlib.contextmanager
    def of(self, num_samples: int, buffers: Iterable[Tensor] = ()) -> Iterator[None]:
        """A context for the pass of a micro-batch.

        Args:
            num_samples: of the micro-batch; 0 for a filler.
            buffers: restored after a filler.
        """
        self.is_filler = num_samples == 0
        is_undone = self.is_filler and not self.are_norms_shared
        saved = [(buffer, compact(buffer).clone()) for buffer in buffers] if is_undone else []
        try:
            yield
        finally:
            self.is_filler = False
        for buffer, before in saved:
            compact(buffer).data.copy_(before)

    def gather(self, output: Tensor, own: Tensor) -> None:
        """Puts the tensors of all ranks one after the other.

        Raises:
            PeerOutOfMemory, UsageError: as `MultiRank.all_reduce_flags`, and so on every rank.
        """
        self._meet(_GATHER, output)
        self._group.connection.tensors.gather(output, own)

    def scatter_sum(self, output: Tensor, own: Tensor) -> None:
        """Gives each rank its part of the sum of all ranks' tensors."""
        self._meet(_SCATTER, output)
        self._group.connection.tensors.scatter_sum(output, own)

    def add_up(self, tensor: Tensor) -> None:
        """Replaces a tensor by its sum over the ranks."""
        self._meet(_ADD_UP, tensor)
        self._group.connection.tensors.add_up([tensor])

    def _meet(self, kind: float, tensor: Tensor) -> None:
        if self.is_agreed:
            self._group.all_reduce_flags(StepFlags(sync_point=kind - _NUM_KINDS * tensor.numel()))


def _on_host(batch: Any) -> Any:
    return with_tensors(batch, (tensor.cpu() for tensor in tensors_in(batch)))


def _on_device(batch: Any, group: MultiRank) -> Any:
    move = placer(group.device, is_channels_last=False)
    return batch if move is None else move(batch)
