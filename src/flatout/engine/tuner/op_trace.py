"""The operators that a step really calls, and their formats.

A setting that silently did nothing is worse than none: each one is looked for in the trace of a
step made under it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from flatout.engine.runtime.allocator import page_faults

# Parts of operators' names, as torch's dispatcher reports them.
_PRODUCTS = ("mm", "linear", "baddbmm", "addmv", "lstm", "gru", "attention")
_CONVOLUTIONS = ("convolution", "conv1d", "conv2d", "conv3d")


@dataclass
class Trace:
    """Operators by name with how often they were called, and what they worked on.

    dtypes: of the results of products and convolutions. num_channels_last: results of 4-d
    operations whose memory is in that order and in no other. num_page_faults: pages of memory that
    the kernel had to give; 0 where that is not known.
    """

    calls: Counter[str] = field(default_factory=Counter)
    dtypes: Counter[torch.dtype] = field(default_factory=Counter)
    num_channels_last: int = 0
    num_page_faults: int = 0

    @property
    def num_operations(self) -> int:
        """Calls of operators in all."""
        return sum(self.calls.values())

    def has_any(self, parts: tuple[str, ...]) -> bool:
        """Whether an operator was called whose name has one of these parts."""
        return any(part in name for name in self.calls for part in parts)

    @property
    def has_products(self) -> bool:
        """Whether matrices were multiplied."""
        return self.has_any(_PRODUCTS)

    @property
    def has_convolutions(self) -> bool:
        """Whether there was a convolution."""
        return self.has_any(_CONVOLUTIONS)

    @property
    def has_attention(self) -> bool:
        """Whether torch's own attention was called."""
        return self.has_any(("scaled_dot_product",))


class _Recorder(TorchDispatchMode):
    """Writes down every operator that is called while it is on."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._trace = trace

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = str(func)
        self._trace.calls[name] += 1
        first = result[0] if isinstance(result, tuple | list) and result else result
        if isinstance(first, Tensor):
            if any(part in name for part in _PRODUCTS + _CONVOLUTIONS):
                self._trace.dtypes[first.dtype] += 1
            if first.dim() == 4 and _is_only_channels_last(first):
                self._trace.num_channels_last += 1
        return result


def _is_only_channels_last(tensor: Tensor) -> bool:
    return not tensor.is_contiguous() and tensor.is_contiguous(memory_format=torch.channels_last)


def traced(action: Callable[[], object]) -> Trace:
    """Runs an action and reports which operators it called, backward ones included."""
    trace = Trace()
    before = page_faults() or 0
    with _Recorder(trace):
        action()
    trace.num_page_faults = (page_faults() or 0) - before
    return trace
