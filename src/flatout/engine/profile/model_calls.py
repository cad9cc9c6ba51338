"""The calls of a model that a loss makes, again without the rest of the loss."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from flatout.engine.tensors.nested import tensors_in, with_tensors


def repeated_calls(
    model: nn.Module, loss: Callable[[], Any], settings: Callable[[], AbstractContextManager[Any]]
) -> Callable[[], None]:
    """Forward and backward of all calls of the model, with the same inputs, as one function.

    Args:
        model: of which only calls of itself count, not of its parts.
        loss: calls it.
        settings: of the forward pass.

    Raises:
        ValueError: the model was not called; by the function, its results have no gradient.
    """
    seen: list[tuple[Any, Any, bool]] = []

    def see(_: nn.Module, args: Any, kwargs: Any) -> None:
        seen.append((_leaves(args), _leaves(kwargs), torch.is_grad_enabled()))

    handle = model.register_forward_pre_hook(see, with_kwargs=True)
    try:
        with settings():
            loss()
    finally:
        handle.remove()
    # A compiled model may keep the hook, and go on adding to the list.
    calls = tuple(seen)
    if not calls:
        raise ValueError("no call of the model was seen: compiled, or only its parts are called")
    given = [*model.parameters(), *tensors_in([(args, kwargs) for args, kwargs, _ in calls])]

    def run() -> None:
        results = []
        with settings():
            for args, kwargs, has_grad in calls:
                # A teacher, or a target, is called without gradients.
                with torch.set_grad_enabled(has_grad):
                    results.append(model(*args, **kwargs))
        ends = [one for one in tensors_in(results) if one.requires_grad]
        if not ends:
            raise ValueError("the model's results have no tensors with a gradient")
        torch.autograd.backward(ends, [torch.ones_like(one) for one in ends])
        for one in given:
            one.grad = None

    return run


def _leaves(values: Any) -> Any:
    """The same values without the graph that they come from."""
    return with_tensors(
        values,
        iter([one.detach().requires_grad_(one.requires_grad) for one in tensors_in(values)]),
    )
