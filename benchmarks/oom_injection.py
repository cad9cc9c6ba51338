"""Want of memory made to order: the allocator's error at one operation of a training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from flatout.engine.watch import StopRequest

# What torch's allocator for the CPU says on Linux.
SAID = (
    "[enforce fail at alloc_cpu.cpp:124] . DefaultCPUAllocator: can't allocate memory: "
    "you tried to allocate 8000000000 bytes. Error code 12 (Cannot allocate memory)"
)


class Injection(TorchDispatchMode):
    """Counts the operations of a part of a training, and makes one of them fail, once.

    num_operations: how many there were in that part.
    failed: the name of the one that failed; None as long as none has.

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
        """From here on operations count."""
        self._is_counting = True

    def end(self) -> None:
        """From here on they do not."""
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
    """The same loss, with the operations counted from one of its calls in training up to another.

    Args:
        loss: an experiment's.
        injection: what counts.
        first, last: numbers of calls, from 1 on; calls of an update that is repeated count, too.
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
    """The same loss, with the operations of the first validation counted, but not what it tells."""

    def counted(model: nn.Module, batch: Any) -> Tensor | tuple[Tensor, Any]:
        (injection.end if model.training else injection.begin)()
        return loss(model, batch)

    return counted


def stopping(
    loss: Callable[[nn.Module, Any], Any], request: StopRequest, at: int
) -> Callable[[nn.Module, Any], Any]:
    """The same loss, which in its so-many-th call in training asks for a stop after the update."""
    calls = 0

    def counted(model: nn.Module, batch: Any) -> Tensor | tuple[Tensor, Any]:
        nonlocal calls
        calls += model.training
        if model.training and calls == at:
            request.make("enough")
        return loss(model, batch)

    return counted
