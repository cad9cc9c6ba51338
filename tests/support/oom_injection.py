"""Out-of-memory errors on demand: the allocator's error at one operation of a training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from flatout.engine.runtime.stop_signals import StopRequest

# What torch's allocator for the CPU says on Linux.
SAID = (
    "[enforce fail at alloc_cpu.cpp:124] . DefaultCPUAllocator: can't allocate memory: "
    "you tried to allocate 8000000000 bytes. Error code 12 (Cannot allocate memory)"
)


class Injection(TorchDispatchMode):
    """Counts the operations of a part of a training, and makes one of them fail, once.

    num_operations: how many there were in that part.
    failed: the name of the one that failed; None if none has.

    Args:
        at: the number of the operation that fails, from 1 on; None lets none fail.
    """

    def __init__(self, at: int | None = None) -> None:
        super().__init__()
        self._at = at
        self._is_counting = False
        self.num_operations = 0
        self.failed: str | None = None

    def begin(self) -> None:
        """Starts counting operations."""
        self._is_counting = True

    def end(self) -> None:
        """Stops counting operations."""
        self._is_counting = False

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if self._is_counting and self.failed is None:
            self.num_operations += 1
            if self.num_operations == self._at:
                self.failed = str(operation)
                raise RuntimeError(SAID)
        return operation(*args, **(kwargs or {}))


def between(
    loss: Callable[[nn.Module, Any], Any], injection: Injection, first: int, last: int
) -> Callable[[nn.Module, Any], Any]:
    """The same loss, with operations counted between two of its calls in training.

    Args:
        loss: an experiment's.
        injection: counts.
        first, last: numbers of calls, from 1 on; calls of a repeated update count, too.
    """
    calls = 0

    def counted(model: nn.Module, batch: Any) -> Tensor | tuple[Tensor, Any]:
        nonlocal calls
        calls += model.training
        if model.training and calls == first:
            injection.begin()
        if model.training and calls == last and injection.failed is None:
            injection.end()
        return loss(model, batch)

    return counted


def in_validation(
    loss: Callable[[nn.Module, Any], Any], injection: Injection
) -> Callable[[nn.Module, Any], Any]:
    """The same loss, with the operations of the first validation counted."""

    def counted(model: nn.Module, batch: Any) -> Tensor | tuple[Tensor, Any]:
        (injection.end if model.training else injection.begin)()
        return loss(model, batch)

    return counted


def stopping(
    loss: Callable[[nn.Module, Any], Any], request: StopRequest, at: int
) -> Callable[[nn.Module, Any], Any]:
    """The same loss, which requests a stop after the update at its nth call in training."""
    calls = 0

    def counted(model: nn.Module, batch: Any) -> Tensor | tuple[Tensor, Any]:
        nonlocal calls
        calls += model.training
        if model.training and calls == at:
            request.make("enough")
        return loss(model, batch)

    return counted
