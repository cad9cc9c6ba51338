"""An exponential moving average of the weights: validated and kept instead of the last ones."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn


class WeightAverage:
    """Averages a model's floating-point parameters; buffers are taken as they are.

    Args:
        model: the model that is trained; its weights now are where the average begins.
        decay: share of the average that each update keeps.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._parameters: list[Tensor] = [p for p in model.parameters() if p.is_floating_point()]
        self._decay = decay
        # clone() keeps the strides, which a swap with the live weights needs.
        self._averages: list[Tensor] = [p.detach().clone() for p in self._parameters]

    @torch.no_grad()
    def update(self) -> None:
        """Moves the average towards the weights, after an update of the optimizer."""
        torch._foreach_lerp_(self._averages, self._parameters, 1 - self._decay)

    @contextlib.contextmanager
    def swapped_in(self) -> Iterator[None]:
        """The model computes with the averages; afterwards with its own weights again."""
        # All at hand before the first is changed: what fails must not leave half of them swapped.
        own = [parameter.data for parameter in self._parameters]
        try:
            _put(self._parameters, self._averages)
            yield
        finally:
            _put(self._parameters, own)

    def state_dict(self) -> dict[str, Any]:
        """The averages, in the order of the model's parameters."""
        return {"averages": list(self._averages)}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes averages back."""
        for average, stored in zip(self._averages, state["averages"], strict=True):
            average.copy_(stored)


def _put(parameters: list[Tensor], values: list[Tensor]) -> None:
    for parameter, value in zip(parameters, values, strict=True):
        parameter.data = value
