"""The gate's reference: gradients and updates in fp64, by the shortest way there is.

Nothing of the engine's step is used here, so that a mistake in it cannot hide.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from flatout.engine.feed.feed import MicroBatch
from flatout.engine.gate.fakes import Bag
from flatout.engine.gate.fixed_rng import Fp64Mode
from flatout.engine.optim.fused_step import set_implementation
from flatout.engine.tensors.nested import placer

Loss = Callable[[nn.Module, Any], Any]
Gradients = list[Tensor | None]


def reference_gradients(
    model: nn.Module, loss: Loss, updates: list[list[MicroBatch]], *, is_double: bool
) -> Gradients:
    """The sum of the gradients of several batches, at weights that are halved after each.

    Args:
        model: is doubled in place where is_double.
        loss: the experiment's.
        updates: micro-batches of each batch, on the model's device or not.
        is_double: computes in fp64; else in the model's own format.

    Returns:
        One for each parameter, in fp64 on the CPU; None where the loss does not depend on it.
    """
    parameters = list(model.parameters())
    to_device = placer(parameters[0].device, False) or _as_it_is
    sums: Gradients = [None] * len(parameters)
    with ExitStack() as stack:
        if is_double:
            model.double()
            stack.enter_context(Fp64Mode())
        model.train()
        for update in updates:
            micro_batches = [(_raised(to_device(batch)) if is_double else to_device(batch), size)
                             for batch, size in update]  # fmt: skip
            _add(sums, _gradients_of(model, loss, micro_batches))
            halve(model)
    return sums


@torch.no_grad()
def halve(model: nn.Module) -> None:
    """Halves the trained weights, which is exact in every number format."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.mul_(0.5)


def _gradients_of(model: nn.Module, loss: Loss, update: list[MicroBatch]) -> Gradients:
    """Gradients of one batch's mean loss."""
    parameters = list(model.parameters())
    num_samples = sum(size for _, size in update)
    total_count: Any = None
    for batch, size in update:
        result = loss(model, batch)
        if isinstance(result, tuple):
            value, count = result
            total_count = count if total_count is None else total_count + count
        else:
            value = result * (size / num_samples)
        value.backward()
    divisor = 1.0 if total_count is None else max(float(total_count), 0.0) or 1.0
    gradients = [None if p.grad is None else _dense(p.grad) / divisor for p in parameters]
    for parameter in parameters:
        parameter.grad = None
    return gradients


def _dense(tensor: Tensor) -> Tensor:
    dense = tensor.to_dense() if tensor.is_sparse else tensor
    return dense.detach().to("cpu", torch.float64)


def _add(sums: Gradients, gradients: Gradients) -> None:
    for index, gradient in enumerate(gradients):
        before = sums[index]
        if gradient is not None:
            sums[index] = gradient if before is None else before + gradient


def _raised(batch: Any) -> Any:
    """The batch with its floating-point numbers in fp64."""
    if isinstance(batch, Tensor):
        return batch.double() if batch.is_floating_point() else batch
    if type(batch) is dict:
        return {key: _raised(item) for key, item in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*map(_raised, batch))
    if isinstance(batch, list | tuple):
        return type(batch)(map(_raised, batch))
    return batch


def _as_it_is(batch: Any) -> Any:
    return batch


def reference_updates(
    bag: Bag, make_optimizer: Callable[[Any], torch.optim.Optimizer], rates: list[float]
) -> tuple[list[Tensor], list[dict[str, Any]]]:
    """A bag's weights and optimizer state after one update for each factor of the learning rate.

    Args:
        bag: whose made-up gradients are used one after another.
        make_optimizer: from the bag's parameters.
        rates: see set_rates.
    """
    bag = copy.deepcopy(bag).double()
    optimizer = make_optimizer(bag.parameters())
    set_implementation(optimizer, "for-loop" if "foreach" in optimizer.defaults else "own")
    for number, rate in enumerate(rates):
        set_rates(optimizer, rate)
        for member, gradient, is_sparse in zip(
            bag.members, bag.gradients, bag.is_sparse, strict=True
        ):
            if member.requires_grad:
                chosen = gradient[number].to(member)
                member.grad = chosen.to_sparse(1) if is_sparse else chosen
        optimizer.step()
    weights = [member.detach().to("cpu", torch.float64) for member in bag.members]
    return weights, optimizer_states(optimizer, bag)


def set_rates(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Sets the largest of the groups' learning rates to `rate`, and the others in proportion."""
    groups = [group for group in optimizer.param_groups if _has_rate(group)]
    largest = max((float(group["lr"]) for group in groups), default=0.0)
    for group in groups:
        share = float(group["lr"]) / largest if largest > 0 else 1.0
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate * share)
        else:
            group["lr"] = rate * share


def _has_rate(group: dict[str, Any]) -> bool:
    return isinstance(group.get("lr"), int | float | Tensor)


def optimizer_states(optimizer: torch.optim.Optimizer, bag: Bag) -> list[dict[str, Any]]:
    """The state of each parameter of the bag: tensors in fp64 on the CPU, and numbers."""
    states = []
    for member in bag.members:
        state = optimizer.state.get(member, {})
        states.append({name: _read(value) for name, value in state.items()})
    return states


def _read(value: Any) -> Any:
    if isinstance(value, Tensor):
        dense = value.to_dense() if value.is_sparse else value
        return dense.detach().to("cpu", torch.float64, copy=True)
    return value
