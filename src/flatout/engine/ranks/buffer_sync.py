"""The model's buffers, and which of them a step has changed: BatchNorm's averages, for one."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from flatout.engine.tensors.state_tree import compact


class BufferSync:
    """Buffers that are averaged over the ranks, by samples, in fp64: what is equal on all of them
    stays so.

    Those that are kept out of the state_dict are each rank's own: many are only caches, as long as
    the longest sequence that a rank has seen.

    Args:
        model: whose buffers they are.
    """

    def __init__(self, model: nn.Module) -> None:
        self._modules = list(model.modules())
        self._seen = self._now()

    def _now(self) -> list[tuple[nn.Module, Tensor, int]]:
        return [
            (module, buffer, buffer._version)
            for module in self._modules
            for name, buffer in module._buffers.items()
            if buffer is not None and name not in module._non_persistent_buffers_set
        ]

    def moved(self) -> list[bool]:
        """The buffers that changed since the last update; of a module all numbers or none.

        BatchNorm's kernels move its averages without a trace, but not its count of batches. Whole
        numbers are never moved so: an index, or a mask of truths, stays out of it.
        """
        now = self._now()
        if len(now) != len(self._seen):
            return [True] * len(now)
        is_traced = [
            buffer is not before or version != seen
            for (_, buffer, version), (_, before, seen) in zip(now, self._seen, strict=True)
        ]
        moved = {
            id(module)
            for (module, _, _), is_moved in zip(now, is_traced, strict=True)
            if is_moved or (isinstance(module, _NormBase) and module.training)
        }
        return [
            is_moved or (id(module) in moved and buffer.is_floating_point())
            for (module, buffer, _), is_moved in zip(now, is_traced, strict=True)
        ]

    def shapes(self) -> list[list[int]]:
        """The shape of each, as far as it is in memory; ranks can only average what has the same
        on all of them.
        """
        return [list(compact(buffer).shape) for _, buffer, _ in self._now()]

    @torch.no_grad()
    def packed(self, moved: list[bool], num_samples: int) -> list[Tensor]:
        """This rank's buffers in one tensor, times its samples; nothing if none has moved."""
        buffers = self._those(moved)
        if not buffers:
            return []
        flat = torch.cat([_reals(buffer).flatten().double() for buffer in buffers])
        # Without samples it says nothing; infinity, as in a mask, times 0 would be NaN.
        return [flat.mul_(num_samples) if num_samples else flat.zero_()]

    @torch.no_grad()
    def unpack(self, moved: list[bool], sums: list[Tensor], num_samples: int) -> None:
        """Replaces those by their means over all samples; whole numbers are rounded."""
        buffers = self._those(moved)
        if buffers:
            parts = (sums[0] / num_samples).split([_reals(buffer).numel() for buffer in buffers])
            for buffer, part in zip(buffers, parts, strict=True):
                value = part.view(_reals(buffer).shape)
                if buffer.is_complex():
                    value = torch.complex(value[..., 0], value[..., 1])
                elif not buffer.is_floating_point():
                    value = value.round()
                buffer.data.copy_(value)
        self._seen = self._now()

    def _those(self, moved: list[bool]) -> list[Tensor]:
        pairs = zip(self._now(), moved, strict=True)
        return [compact(buffer) for (_, buffer, _), is_moved in pairs if is_moved]


def _reals(buffer: Tensor) -> Tensor:
    """Its numbers; of complex ones both parts."""
    return torch.view_as_real(buffer.resolve_conj()) if buffer.is_complex() else buffer
