"""Contiguous copies of tensors on the CPU; what comes from a GPU travels through pinned memory.

Copies that were pinned themselves would take as long to be allocated. So two buffers are pinned:
while the GPU fills one of them, the other is emptied to where its content belongs. Small tensors
share a buffer, and large ones come in pieces.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

_BUFFER_BYTES = 32 * 2**20

# The bytes of a copy, and those of the tensor that belong there.
_Piece = tuple[Tensor, Tensor]
Pair = tuple[Tensor, Tensor]


class HostCopies:
    """Contiguous copies on the CPU of tensors that come one after the other.

    Small tensors wait on their device until they fill a buffer, so that many travel as one.
    """

    def __init__(self) -> None:
        self._pairs: list[Pair] = []
        self._num_bytes = 0

    def of(self, tensor: Tensor) -> Tensor:
        """A copy, whose content is there after `fill`."""
        copy = empty_on_host(tensor)
        self._pairs.append((copy, tensor))
        self._num_bytes += tensor.nbytes
        if self._num_bytes >= _BUFFER_BYTES:
            self.fill()
        return copy

    def fill(self) -> None:
        """Fills all copies that were given."""
        fill_on_host(self._pairs)
        self._pairs, self._num_bytes = [], 0


def empty_on_host(tensor: Tensor) -> Tensor:
    """A contiguous tensor on the CPU, to be filled with another one's elements."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")


@torch.no_grad()
def fill_on_host(pairs: Iterable[Pair]) -> None:
    """Fills contiguous tensors on the CPU, each with the elements of another one."""
    on_gpu = []
    for copy, tensor in pairs:
        if tensor.device.type == "cuda":
            on_gpu.append((copy, tensor))
        else:
            copy.copy_(tensor)
    if on_gpu:
        through_pinned(on_gpu)


def through_pinned(pairs: list[Pair]) -> None:
    """Copies tensors of a GPU, one pinned buffer after the other."""
    num_bytes = min(_BUFFER_BYTES, sum(tensor.nbytes for _, tensor in pairs))
    buffers: list[_Buffer] = []
    on_its_way: _Buffer | None = None
    for number, pieces in enumerate(_loads(pairs, num_bytes)):
        if number < 2:
            buffers.append(_Buffer(*_staging(num_bytes, pairs[0][1])))
        buffer = buffers[number % 2]
        buffer.send(pieces)
        if on_its_way is not None:
            on_its_way.empty()
        on_its_way = buffer
    if on_its_way is not None:
        on_its_way.empty()


@dataclass
class _Buffer:
    """Pinned memory, and the pieces that are on their way into it."""

    memory: Tensor
    event: Any
    pieces: list[_Piece] = field(default_factory=list)

    def send(self, pieces: list[_Piece]) -> None:
        """Lets the GPU fill it; it must be empty."""
        begin = 0
        for _, piece in pieces:
            self.memory[begin : begin + len(piece)].copy_(piece, non_blocking=True)
            begin += len(piece)
        self.event.record()
        self.pieces = pieces

    def empty(self) -> None:
        """Waits until it is filled, and moves its content to where it belongs."""
        self.event.synchronize()
        begin = 0
        for copy, _ in self.pieces:
            copy.copy_(self.memory[begin : begin + len(copy)])
            begin += len(copy)
        self.pieces = []


def _staging(num_bytes: int, tensor: Tensor) -> tuple[Tensor, Any]:
    event = torch.cuda.Event()
    try:
        return torch.empty(
            num_bytes, dtype=torch.uint8, pin_memory=tensor.device.type == "cuda"
        ), event
    except RuntimeError:
        # Little can be pinned under WSL: then it is as slow as without it.
        return torch.empty(num_bytes, dtype=torch.uint8), event


def _loads(pairs: list[Pair], num_bytes: int) -> Iterator[list[_Piece]]:
    """The bytes of all tensors in loads of at most so many."""
    load: list[_Piece] = []
    num_free = num_bytes
    for copy, tensor in pairs:
        to, of = _bytes_of(copy), _bytes_of(tensor)
        while len(of):
            load.append((to[:num_free], of[:num_free]))
            num_taken = len(load[-1][0])
            to, of = to[num_taken:], of[num_taken:]
            num_free -= num_taken
            if num_free == 0:
                yield load
                load, num_free = [], num_bytes
    if load:
        yield load


def _bytes_of(tensor: Tensor) -> Tensor:
    # What is not contiguous is made so on its device, as torch does for a copy.
    whole = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return whole.view(-1).view(torch.uint8)
