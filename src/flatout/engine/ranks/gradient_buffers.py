"""A rank's gradients on their way to those of the whole batch: whole ones, or parts of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from flatout.engine.tensors.sharded import local_part, scale
from flatout.errors import UsageError


class GradientBuffers(Protocol):
    """The interface of gradients to an exchange."""

    def expect_last_pass(self) -> None:
        """Announces the last backward pass of the update."""
        ...

    def take(self) -> list[bool]:
        """Takes this rank's gradients; gives which weights have one, where ranks may differ."""
        ...

    def sent(self) -> list[Tensor]:
        """The tensors that are summed over the ranks, in place."""
        ...

    def put(self, has_gradient: list[bool], factor: Any) -> None:
        """Puts the sums, times a factor, into `grad` of each weight that has a gradient."""
        ...


class ReplicatedGradients:
    """Gradients of weights that are whole on each rank: small ones are copied into one tensor.

    Args:
        parameters: those that are trained.
    """

    def __init__(self, parameters: list[Tensor]) -> None:
        self._parameters = parameters
        self._trained: list[Tensor] = []
        self._flat: list[Tensor] = []
        # Each weight's part of a flat tensor; None where its gradient is sent alone.
        self._views: list[Tensor | None] = []

    def expect_last_pass(self) -> None:
        """See GradientBuffers: they are sent after it."""

    @torch.no_grad()
    def take(self) -> list[bool]:
        """See GradientBuffers.

        Raises:
            UsageError: ranks-do-not-fit, where one is sparse.
        """
        trained = [parameter for parameter in self._parameters if parameter.requires_grad]
        if not are_same(trained, self._trained):
            self._flat, self._views = _laid_out(trained)
            self._trained = trained
        copy_gradients(trained, self._views)
        gradients = [parameter.grad for parameter in trained]
        alone = self._sent_alone()
        own = _own_memory([parameter.grad for parameter in alone])
        for parameter in alone:
            parameter.grad = _sendable(parameter, own)
        return [gradient is not None for gradient in gradients]

    def sent(self) -> list[Tensor]:
        """See GradientBuffers."""
        alone = [parameter.grad for parameter in self._sent_alone()]
        return [*self._flat, *(gradient for gradient in alone if gradient is not None)]

    def put(self, has_gradient: list[bool], factor: Any) -> None:
        """See GradientBuffers."""
        scale(self.sent(), factor)
        for parameter, view, is_there in zip(self._trained, self._views, has_gradient, strict=True):
            if not is_there:
                parameter.grad = None
            elif view is not None:
                parameter.grad = view

    def _sent_alone(self) -> list[Tensor]:
        pairs = zip(self._trained, self._views, strict=True)
        return [parameter for parameter, view in pairs if view is None]


# A gradient of so many bytes in main memory is sent as it is. Copied, it would be read and written
# once more, and what held it would go back to the system, which hands out zeroed pages for another.
_SENT_ALONE_BYTES = 1 << 20


def _is_sent_alone(parameter: Tensor) -> bool:
    num_bytes = parameter.numel() * parameter.element_size()
    return parameter.device.type == "cpu" and num_bytes >= _SENT_ALONE_BYTES


def _own_memory(gradients: list[Tensor | None]) -> set[int]:
    """Addresses of storages that are of one gradient only.

    The backward pass of a view may hand the same memory to two weights.
    """
    there = [gradient for gradient in gradients if gradient is not None]
    counts = Counter(gradient.untyped_storage().data_ptr() for gradient in there)
    return {address for address, count in counts.items() if count == 1}


def _sendable(parameter: Tensor, own: set[int]) -> Tensor:
    """A weight's gradient in memory of its own, laid out as on every rank; zeros if it has none."""
    gradient = parameter.grad
    if gradient is None:
        return torch.zeros_like(parameter)
    is_own = gradient.untyped_storage().data_ptr() in own
    if (
        is_own
        and gradient.dtype == parameter.dtype
        and gradient.stride() == dense_strides(parameter)
    ):
        return gradient
    return torch.empty_like(parameter).copy_(gradient)


def dense_strides(parameter: Tensor) -> tuple[int, ...]:
    """As torch.empty_like lays it out, without gaps: fused kernels take that for granted."""
    return torch.empty_like(parameter, device="meta").stride()


def are_same(tensors: list[Tensor], others: list[Tensor]) -> bool:
    """Whether these are those tensors, one by one."""
    return len(tensors) == len(others) and all(
        tensor is other for tensor, other in zip(tensors, others, strict=True)
    )


def copy_gradients(parameters: list[Tensor], views: Sequence[Tensor | None]) -> None:
    """Copies gradients to where they are sent from, where there is such a place; zeros for none.

    Raises:
        UsageError: ranks-do-not-fit, where one is sparse.
    """
    gradients = [parameter.grad for parameter in parameters]
    if any(gradient is not None and gradient.is_sparse for gradient in gradients):
        raise UsageError(
            "ranks-do-not-fit",
            "a gradient is sparse: several ranks cannot sum it.",
            fix="create the embedding with sparse=False, or train without --on",
        )
    pairs = list(zip(views, gradients, strict=True))
    there = [
        (view, gradient) for view, gradient in pairs if view is not None and gradient is not None
    ]
    if there:
        torch._foreach_copy_([view for view, _ in there], [gradient for _, gradient in there])
    missing = [view for view, gradient in pairs if view is not None and gradient is None]
    if missing:
        torch._foreach_zero_(missing)


def _laid_out(parameters: list[Tensor]) -> tuple[list[Tensor], list[Tensor | None]]:
    """One flat tensor for each kind of weight, and each weight's part of it, laid out as it is, or
    None where it has none.
    """
    groups: defaultdict[Any, list[int]] = defaultdict(list)
    for index, parameter in enumerate(parameters):
        if not _is_sent_alone(parameter):
            groups[parameter.dtype, parameter.device].append(index)
    flats: list[Tensor] = []
    views: dict[int, Tensor] = {}
    for (dtype, device), indices in groups.items():
        size = sum(parameters[index].numel() for index in indices)
        flat = torch.zeros(size, dtype=dtype, device=device)
        flats.append(flat)
        start = 0
        for index in indices:
            parameter = parameters[index]
            views[index] = flat.as_strided(parameter.shape, dense_strides(parameter), start)
            start += parameter.numel()
    return flats, [views.get(index) for index in range(len(parameters))]


class ShardedGradients:
    """Gradients of weights that are spread over the ranks: added up in the backward pass already.

    Args:
        parameters: those that are trained.
    """

    def __init__(self, parameters: list[Tensor]) -> None:
        self._parameters = parameters
        # The sum over all of this rank's, then over all ranks'.
        self._squares: Tensor | None = None
        self._factor: Any = 1.0

    def expect_last_pass(self) -> None:
        """See GradientBuffers: every pass adds them up."""

    def take(self) -> list[bool]:
        """See GradientBuffers: a weight without a gradient has none on any rank."""
        parts = self._parts()
        device = local_part(self._parameters[0]).device
        self._squares = torch.zeros((), dtype=torch.float64, device=device)
        if parts:
            norms = torch._foreach_norm(parts)
            self._squares += torch.stack([norm.double() for norm in norms]).square().sum()
        return []

    def sent(self) -> list[Tensor]:
        """See GradientBuffers: what is left to be known is how large they are together."""
        assert self._squares is not None
        return [self._squares]

    def put(self, has_gradient: list[bool], factor: Any) -> None:
        """See GradientBuffers."""
        self._factor = factor
        scale(self._parts(), factor)

    def norm(self) -> Tensor:
        """The 2-norm of all gradients, over all ranks, once they are put."""
        assert self._squares is not None
        norm: Tensor = self._squares.sqrt() * self._factor
        return norm

    def _parts(self) -> list[Tensor]:
        # A weight with fewer rows than there are ranks has no part on some.
        gradients = [local_part(p.grad) for p in self._parameters if p.grad is not None]
        return [gradient for gradient in gradients if gradient.numel()]
