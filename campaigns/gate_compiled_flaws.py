"""Compiled code with one flaw each, for the gate to find.

A flaw replaces the call of torch's compiled code and counts as such: nothing is compiled here, so
it is judged as fast as any other bug.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from gate_flaws import flawed_session
from torch import Tensor, nn

from flatout.engine.gate import Maker
from flatout.engine.session.session import Session
from flatout.engine.tensors.nested import tensors_in

Compute = Callable[[nn.Module, Any], Any]


def flawed_code(name: str) -> Maker:
    """A maker of sessions whose compiled forward pass has a flaw."""

    def spoil(session: Session) -> None:
        loss = session.loss
        if loss is None or loss.compiler is None:
            return
        compiler, flawed = loss.compiler, _FLAWS[name](session, loss._loss)

        def code(model: nn.Module, batch: Any) -> Any:
            compiler.num_calls += name != "not run"
            return flawed(model, batch)

        loss._compiled = code

    return flawed_session(spoil)


def _as_written(session: Session, loss: Compute) -> Compute:
    return loss


def _same_masks(session: Session, loss: Compute) -> Compute:
    """A seed that was compiled in."""

    def code(model: nn.Module, batch: Any) -> Any:
        torch.manual_seed(7)
        return loss(model, batch)

    return code


def _own_draws(session: Session, loss: Compute) -> Compute:
    """Draws of the compiler's own, from a seed that it takes from torch's generator."""

    def code(model: nn.Module, batch: Any) -> Any:
        seed = int(torch.randint(2**31, ()))
        with torch.random.fork_rng([]):
            torch.manual_seed(seed)
            return loss(model, batch)

    return code


def _first_weights(session: Session, loss: Compute) -> Compute:
    """Weights that were compiled in as constants."""
    first: list[Tensor] = []

    def code(model: nn.Module, batch: Any) -> Any:
        own = [parameter.data for parameter in model.parameters()]
        first.extend(weight.clone() for weight in own[len(first) :])
        for parameter, constant in zip(model.parameters(), first, strict=True):
            parameter.data = constant
        result = loss(model, batch)
        for parameter, weight in zip(model.parameters(), own, strict=True):
            parameter.data = weight
        return result

    return code


def _buffers_stand_still(session: Session, loss: Compute) -> Compute:
    """Updates of buffers that the code has lost."""

    def code(model: nn.Module, batch: Any) -> Any:
        before = [buffer.clone() for buffer in model.buffers()]
        result = loss(model, batch)
        for buffer, kept in zip(model.buffers(), before, strict=True):
            buffer.data = kept
        return result

    return code


def _changed_inputs(session: Session, loss: Compute) -> Compute:
    """A result that is written into the memory of an input."""

    def code(model: nn.Module, batch: Any) -> Any:
        result = loss(model, batch)
        for tensor in tensors_in(batch):
            if tensor.is_floating_point():
                tensor.data = tensor * 0.5
        return result

    return code


def _narrow_norms(session: Session, loss: Compute) -> Compute:
    """LayerNorm by another estimate of the variance: over n - 1 numbers instead of n."""

    def code(model: nn.Module, batch: Any) -> Any:
        hooks = [
            module.register_forward_hook(_narrowed)
            for module in model.modules()
            if isinstance(module, nn.LayerNorm)
        ]
        result = loss(model, batch)
        for hook in hooks:
            hook.remove()
        return result

    return code


def _narrowed(norm: Any, inputs: Any, output: Tensor) -> Tensor:
    size = norm.normalized_shape[-1]
    centred = output - (norm.bias if norm.bias is not None else 0)
    return output + centred * ((1 - 1 / size) ** 0.5 - 1)


def _rounded(session: Session, loss: Compute) -> Compute:
    """Values between two operators kept in bf16 although fp32 was requested."""

    def code(model: nn.Module, batch: Any) -> Any:
        hooks = [
            module.register_forward_hook(lambda _, inputs, out: out.bfloat16().to(out.dtype))
            for module in model.modules()
            if isinstance(module, nn.Linear)
        ]
        result = loss(model, batch)
        for hook in hooks:
            hook.remove()
        return result

    return code


_FLAWS: dict[str, Callable[[Session, Compute], Compute]] = {
    "not run": _as_written,
    "same masks": _same_masks,
    "own draws": _own_draws,
    "first weights": _first_weights,
    "buffers frozen": _buffers_stand_still,
    "changed inputs": _changed_inputs,
    "narrow norms": _narrow_norms,
    "rounded": _rounded,
}


def flawed_optimizer_code(name: str) -> Maker:
    """A maker of sessions whose compiled optimizer has numbers compiled in: `lr` or `step`."""

    def spoil(session: Session) -> None:
        steps = session.optimizer_steps
        if steps.compiler is None:
            return
        compiler = steps.compiler

        def step_of(optimizer: torch.optim.Optimizer) -> Callable[[], None]:
            first: dict[str, Any] = {}

            def step() -> None:
                compiler.num_calls += 1
                _step_with_constants(optimizer, name, first)

            return step

        steps.step_of = step_of  # type: ignore[method-assign]

    return flawed_session(spoil)


def _step_with_constants(
    optimizer: torch.optim.Optimizer, name: str, first: dict[str, Any]
) -> None:
    groups = optimizer.param_groups
    if name == "lr":
        rates = [group["lr"] for group in groups]
        constants = first.setdefault("lr", list(rates))
        for group, constant in zip(groups, constants, strict=True):
            group["lr"] = constant
        optimizer.step()
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate
        return
    optimizer.step()
    for state in optimizer.state.values():
        if isinstance(state.get("step"), Tensor):
            state["step"].fill_(1.0)
