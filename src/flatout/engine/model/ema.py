"""An exponential moving average of the weights, validated and kept instead of the weights."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from flatout.engine.tensors.sharded import is_sharded, local_part


class WeightAverage:
    """Averages a model's floating-point parameters; buffers are copied unchanged.

    decay: share of the average that each update keeps.

    Args:
        model: the trained model; the average starts with its current weights.
        decay: share of the average that each update keeps.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._parameters: list[Tensor] = [p for p in model.parameters() if p.is_floating_point()]
        self.decay = decay
        # clone() keeps the strides, which a swap with the live weights needs.
        self._averages: list[Tensor] = [p.detach().clone() for p in self._parameters]

    @torch.no_grad()
    def update(self) -> None:
        """Moves the average towards the weights, after an update of the optimizer."""
        averages, parameters = map(local_part, self._averages), map(local_part, self._parameters)
        torch._foreach_lerp_(list(averages), list(parameters), 1 - self.decay)

    @contextlib.contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Makes the model use the averages; afterwards its own weights again."""
        # All are prepared before the first is changed, so that a failure cannot leave half swapped.
        own = [p.detach().clone() if is_sharded(p) else p.data for p in self._parameters]
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
        """Restores averages."""
        for average, stored in zip(self._averages, state["averages"], strict=True):
            average.copy_(stored)


@torch.no_grad()
def _put(parameters: list[Tensor], values: list[Tensor]) -> None:
    for parameter, value in zip(parameters, values, strict=True):
        if is_sharded(parameter):
            # What puts it together with the others' parts knows this memory alone.
            local_part(parameter).copy_(local_part(value))
        else:
            parameter.data = value
