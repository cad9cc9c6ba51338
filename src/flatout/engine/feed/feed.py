"""The micro-batches of each update, in an exactly reproducible order.

Three sources have one interface: `updates(epoch, first)` yields, for each optimizer update of the
epoch from `first` on, its micro-batches with their numbers of samples. The last partial batch is
an update like any other.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from flatout.engine.runtime.rng import sample_order
from flatout.engine.tensors.nested import is_all_tensors, tensors_in, with_tensors
from flatout.errors import UsageError
from flatout.schema.units import counted_text

MicroBatch = tuple[Any, int]

# Gathering shuffled samples for several batches together costs one call instead of many; this is
# the most memory used for it. (One batch is gathered even if it is larger.)
_GATHERED_BYTES = 16 * 2**20


@dataclass(frozen=True, kw_only=True)
class BatchShard:
    """A rank's part of every batch: contiguous, with sizes that differ by at most one sample."""

    rank: int = 0
    size: int = 1

    def bounds(self, num_samples: int) -> tuple[int, int]:
        """This rank's range of samples (start, end) in a batch of that size."""
        share, more = divmod(num_samples, self.size)
        start = self.rank * share + min(self.rank, more)
        return start, start + share + (self.rank < more)


class Feed(Protocol):
    """A source of this rank's micro-batches; update numbers are the same on all ranks."""

    num_samples: int | None
    updates_per_epoch: int | None

    def updates(self, epoch: int, first: int) -> Iterator[list[MicroBatch]]:
        """The micro-batches of each update of that epoch, from update number `first` on."""
        ...

    def resize(self, micro_batch_size: int) -> None:
        """Changes the size of the micro-batches that follow."""
        ...

    def can_go_on(self, first: int) -> bool:
        """Whether `again` can start with update number `first`, the latest or the next one."""
        ...

    def again(self, epoch: int, first: int) -> Iterator[list[MicroBatch]]:
        """Like `updates`, in the middle of reading an epoch, in micro-batches of the new size."""
        ...

    def state(self) -> Any:
        """State for a resume besides epoch and update; None if these two are enough."""
        ...

    def load_state(self, state: Any) -> None:
        """Restores what `state` returned; the next call of `updates` continues from there."""
        ...

    def close(self) -> None:
        """Stops reading ahead: no more batches will be requested."""
        ...


@dataclass(frozen=True, kw_only=True)
class Slicing:
    """The division of an epoch's samples into updates and micro-batches.

    share: the rank's part of each update.
    """

    batch_size: int
    micro_batch_size: int
    seed: int
    is_shuffled: bool
    share: BatchShard = BatchShard()

    def updates_per_epoch(self, num_samples: int) -> int:
        """Optimizer updates in an epoch, the last partial batch included."""
        return math.ceil(num_samples / self.batch_size)

    def own(self, num_samples: int, first: int = 0) -> Iterator[tuple[int, int]]:
        """Start and end of this rank's samples in each update, from update number `first` on."""
        for start in range(first * self.batch_size, num_samples, self.batch_size):
            begin, end = self.share.bounds(min(self.batch_size, num_samples - start))
            yield start + begin, start + end

    def resized(self, micro_batch_size: int) -> Slicing:
        """The same updates in micro-batches of another size."""
        return replace(self, micro_batch_size=min(micro_batch_size, self.batch_size))


class TensorFeed:
    """Tensors in memory, on the CPU or already on the device, gathered and sliced.

    Args:
        data: nested tensors with the same first dimension.
        device: where the tensors should be; on a CUDA device they stay there ("resident").
        is_pinned: batches are gathered in pinned memory, from which a GPU copies during the step.
    """

    def __init__(
        self, data: Any, slicing: Slicing, device: torch.device, *, is_pinned: bool = False
    ) -> None:
        self._nesting = data
        self._tensors = [tensor.to(device) for tensor in tensors_in(data)]
        self._slicing = slicing
        self._device = device
        self._is_pinned = is_pinned
        self.num_samples: int | None = len(self._tensors[0])
        self.updates_per_epoch: int | None = slicing.updates_per_epoch(self.num_samples)
        batch_bytes = slicing.batch_size * sum(_row_bytes(tensor) for tensor in self._tensors)
        self._batches_per_gather = max(1, _GATHERED_BYTES // max(1, batch_bytes))

    @property
    def samples_per_gather(self) -> int:
        """Largest number of samples that one call gathers."""
        return self._batches_per_gather * self._slicing.batch_size

    def updates(self, epoch: int, first: int) -> Iterator[list[MicroBatch]]:
        """See Feed."""
        slicing = self._slicing
        order = sample_order(len(self._tensors[0]), slicing.seed, epoch, slicing.is_shuffled)
        # Gathers start at the same samples whether resumed or not, so that every batch has the
        # same alignment in memory: otherwise vectorised kernels may round differently.
        start = first // self._batches_per_gather
        skipped = first - start * self._batches_per_gather
        parts = order.split(self.samples_per_gather)
        for part in parts[start:]:
            own = list(slicing.own(len(part)))
            if slicing.share.size > 1:
                part = torch.cat([part[begin:end] for begin, end in own])
            indices = self._on_device(part)
            gathered = [self._gathered(tensor, indices) for tensor in self._tensors]
            yield from self._sliced(gathered, [end - begin for begin, end in own], skipped)
            skipped = 0

    def _on_device(self, indices: Tensor) -> Tensor:
        """Indices on the device; the host does not wait until it has done what comes before."""
        if self._device.type == "cuda":
            # WSL limits pinned memory. From other memory the copy is correct, too.
            with contextlib.suppress(RuntimeError):
                indices = indices.pin_memory()
        return indices.to(self._device, non_blocking=True)

    def _gathered(self, tensor: Tensor, indices: Tensor) -> Tensor:
        if self._is_pinned:
            try:
                shape = (len(indices), *tensor.shape[1:])
                pinned = torch.empty(shape, dtype=tensor.dtype, pin_memory=True)
            except RuntimeError:
                # WSL limits pinned memory, and the limit cannot be queried.
                self._is_pinned = False
            else:
                return torch.index_select(tensor, 0, indices, out=pinned)
        return tensor.index_select(0, indices)

    def _sliced(
        self, gathered: list[Tensor], sizes: list[int], skipped: int
    ) -> Iterator[list[MicroBatch]]:
        micro_size = self._slicing.micro_batch_size
        columns = [tensor.split(sizes) for tensor in gathered]
        is_tuple = type(self._nesting) is tuple and len(self._nesting) == len(columns)
        for row in list(zip(*columns, strict=True))[skipped:]:
            num_samples = len(row[0])
            if num_samples == 0:
                yield []
            elif num_samples <= micro_size:
                batch = row if is_tuple else with_tensors(self._nesting, iter(row))
                yield [(batch, num_samples)]
            else:
                pieces = zip(*(tensor.split(micro_size) for tensor in row), strict=True)
                yield [
                    (with_tensors(self._nesting, iter(piece)), len(piece[0])) for piece in pieces
                ]

    def resize(self, micro_batch_size: int) -> None:
        """See Feed."""
        self._slicing = self._slicing.resized(micro_batch_size)

    def can_go_on(self, first: int) -> bool:
        """See Feed."""
        return True

    def again(self, epoch: int, first: int) -> Iterator[list[MicroBatch]]:
        """See Feed."""
        return self.updates(epoch, first)

    def state(self) -> None:
        """See Feed: the order is a function of the epoch."""

    def load_state(self, state: Any) -> None:
        """See Feed."""

    def close(self) -> None:
        """See Feed."""


def _row_bytes(tensor: Tensor) -> int:
    return tensor[:1].numel() * tensor.element_size()


def check_size(num_samples: int, batch_size: int, name: str) -> None:
    """Refuses data that cannot fill a single batch, which is a mistake."""
    if num_samples == 0:
        raise UsageError(
            "no-data", f"the {name} data is empty.", fix=f"check the result of `{name}_data()`"
        )
    if batch_size > num_samples:
        raise UsageError(
            "batch-larger-than-data",
            f"`batch_size` is {batch_size:,}; the {name} data has "
            f"{counted_text(num_samples, 'sample')}.",
            fix=f"use a batch size of at most {num_samples:,}",
        )


def is_map_style(data: Any) -> bool:
    """Whether samples are accessed by index."""
    return hasattr(data, "__getitem__") and hasattr(data, "__len__")


def is_in_memory(data: Any) -> bool:
    """Whether it contains only tensors, which are sliced without a DataLoader."""
    return is_all_tensors(data)
