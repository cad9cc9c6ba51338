"""A rank's gradients on their way to those of the whole batch: whole ones, or parts of them."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Protocol

import torch
from torch import Tensor

from flatout.errors import UsageError


def local_part(tensor: Tensor) -> Tensor:
    """What of a tensor lies on this rank: all of it, where it is not spread over the ranks."""
    # One of torch's distributed tensors, which take a while to import.
    spread: Any = tensor
    with torch.no_grad():
        return spread.to_local() if is_spread(tensor) else tensor


def is_spread(tensor: Tensor) -> bool:
    """Whether each rank holds a part of it only."""
    return hasattr(tensor, "to_local")


class RankGradients(Protocol):
    """What an exchange asks of gradients."""

    def take(self) -> list[bool]:
        """Takes this rank's gradients; gives which weights have one, where ranks may differ."""
        ...

    def sent(self) -> list[Tensor]:
        """What is added up over the ranks, in place."""
        ...

    def put(self, has_gradient: list[bool], factor: Any) -> None:
        """Puts the sums, times a factor, into `grad` of each weight that has a gradient."""
        ...


class WholeGradients:
    """Gradients of weights that lie whole on each rank: copied into one tensor, and added up.

    Args:
        parameters: those that are trained.
    """

    def __init__(self, parameters: list[Tensor]) -> None:
        self._parameters = parameters
        self._trained: list[Tensor] = []
        self._flat: list[Tensor] = []
        self._views: list[Tensor] = []

    @torch.no_grad()
    def take(self) -> list[bool]:
        """See RankGradients.

        Raises:
            UsageError: ranks-do-not-fit, where one is sparse.
        """
        trained = [one for one in self._parameters if one.requires_grad]
        if len(trained) != len(self._trained) or any(
            one is not other for one, other in zip(trained, self._trained, strict=True)
        ):
            self._flat, self._views = _laid_out(trained)
            self._trained = trained
        gradients = [one.grad for one in trained]
        if any(one is not None and one.is_sparse for one in gradients):
            raise UsageError(
                "ranks-do-not-fit",
                "a gradient is sparse: several ranks cannot add it up.",
                fix="build the embedding with sparse=False, or train without --on",
            )
        pairs = list(zip(self._views, gradients, strict=True))
        there = [(view, one) for view, one in pairs if one is not None]
        if there:
            torch._foreach_copy_([view for view, _ in there], [one for _, one in there])
        missing = [view for view, one in pairs if one is None]
        if missing:
            torch._foreach_zero_(missing)
        return [one is not None for one in gradients]

    def sent(self) -> list[Tensor]:
        """See RankGradients."""
        return self._flat

    def put(self, has_gradient: list[bool], factor: Any) -> None:
        """See RankGradients."""
        scale(self._flat, factor)
        for parameter, view, is_there in zip(self._trained, self._views, has_gradient, strict=True):
            parameter.grad = view if is_there else None


def _laid_out(parameters: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """One flat tensor for each kind of weight, and each weight's part of it, laid out as it is."""
    groups: defaultdict[Any, list[int]] = defaultdict(list)
    for index, one in enumerate(parameters):
        groups[one.dtype, one.device].append(index)
    flats: list[Tensor] = []
    views: dict[int, Tensor] = {}
    for (dtype, device), indices in groups.items():
        size = sum(parameters[index].numel() for index in indices)
        flat = torch.zeros(size, dtype=dtype, device=device)
        flats.append(flat)
        start = 0
        for index in indices:
            one = parameters[index]
            # As torch.empty_like lays it out, without gaps: fused kernels take that for granted.
            stride = torch.empty_like(one, device="meta").stride()
            views[index] = flat.as_strided(one.shape, stride, start)
            start += one.numel()
    return flats, [views[index] for index in range(len(parameters))]


class SpreadGradients:
    """Gradients of weights that are spread over the ranks: added up in the backward pass already.

    Args:
        parameters: those that are trained.
    """

    def __init__(self, parameters: list[Tensor]) -> None:
        self._parameters = parameters
        # The sum over all of this rank's, then over all ranks'.
        self._squares: Tensor | None = None
        self._factor: Any = 1.0

    def take(self) -> list[bool]:
        """See RankGradients: a weight without a gradient has none on any rank."""
        parts = self._parts()
        device = local_part(self._parameters[0]).device
        self._squares = torch.zeros((), dtype=torch.float64, device=device)
        if parts:
            norms = torch._foreach_norm(parts)
            self._squares += torch.stack([one.double() for one in norms]).square().sum()
        return []

    def sent(self) -> list[Tensor]:
        """See RankGradients: what is left to be known is how large they are together."""
        assert self._squares is not None
        return [self._squares]

    def put(self, has_gradient: list[bool], factor: Any) -> None:
        """See RankGradients."""
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
        return [one for one in gradients if one.numel()]


@torch.no_grad()
def scale(tensors: list[Tensor], factor: Any) -> None:
    """Multiplies tensors in place, unless the factor is known to be 1."""
    if tensors and not (isinstance(factor, float) and factor == 1.0):
        torch._foreach_mul_(tensors, factor)
