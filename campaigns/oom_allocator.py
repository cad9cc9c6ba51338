"""Out-of-memory errors from a GPU's own allocator: a memory limit set at one operation."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from support.oom_injection import Injection
from torch import Tensor

# Sizes of what fills the gaps between the tensors that are there: the largest first. The allocator
# hands out multiples of the smallest.
_LARGEST, _SMALLEST = 2**30, 2**9


class AllocatorLimit(Injection):
    """From one operation on, torch's allocator has no free memory, until it has failed once.

    Operations that allocate nothing continue; the first one that allocates fails as it would on a
    full GPU, with the same exception from the same place.

    Args:
        at: the number of the operation after which the limit is set, from 1 on; None sets none.
    """

    def __init__(self, at: int | None = None) -> None:
        super().__init__(None)
        self._limited_at = at
        self._fillers: list[Tensor] | None = None

    def end(self) -> None:
        """See Injection: nothing failed, and nothing should from here on."""
        super().end()
        self._lift()

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        before = self.num_operations
        try:
            result = super().__torch_dispatch__(operation, types, args, kwargs)
        except RuntimeError:
            # torch.OutOfMemoryError, or what a library makes of it.
            if self._fillers is not None:
                self.failed = str(operation)
                self._lift()
            raise
        if self.num_operations != before and self.num_operations == self._limited_at:
            self._set()
        return result

    def _set(self) -> None:
        torch.cuda.empty_cache()
        total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
        torch.cuda.set_per_process_memory_fraction(torch.cuda.memory_reserved() / total)
        self._fillers = []
        size = _LARGEST
        while size >= _SMALLEST:
            with contextlib.suppress(torch.OutOfMemoryError):
                while True:
                    filler = torch.empty(size, dtype=torch.uint8, device="cuda")
                    self._fillers.append(filler)
            size //= 2

    def _lift(self) -> None:
        if self._fillers is not None:
            self._fillers = None
            torch.cuda.set_per_process_memory_fraction(1.0)
