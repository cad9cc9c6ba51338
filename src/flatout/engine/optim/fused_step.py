"""Ways to carry out an optimizer's update; its mathematics stays the optimizer's.

torch's `Optimizer.step` spends about 70 us a step in Python around the kernel (LOG.md, 2026-11-21).
For Adam, AdamW and SGD in their fused form the kernel is called here with lists prepared once; the
state stays in the optimizer, so checkpoints are the same as without it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim import optimizer as torch_optimizer

from flatout.engine.tensors.sharded import is_sharded
from flatout.errors import UsageError
from flatout.schema.recipe import OptimizerImplementation


def can_be_fused(optimizer: Optimizer) -> bool:
    """Whether torch has a fused kernel for it and every parameter is of a kind it takes."""
    return "fused" in optimizer.defaults and all(
        parameter.dtype == torch.float32 and not parameter.is_sparse and _is_dense(parameter)
        for group in optimizer.param_groups
        for parameter in group["params"]
    )


def _is_dense(parameter: Tensor) -> bool:
    """Whether its memory has no gaps: with gaps, torch's fused kernels compute wrong results."""
    return parameter.stride() == torch.empty_like(parameter, device="meta").stride()


def check_implementation(
    optimizer: Optimizer, implementation: OptimizerImplementation, *, can_be_fused: bool
) -> None:
    """Refuses an implementation that torch does not have for this optimizer.

    Raises:
        UsageError: optimizer-has-no-such-implementation.
    """
    is_fused = implementation == "fused"
    needed = "fused" if is_fused else "foreach"
    if implementation == "own" or (needed in optimizer.defaults and (can_be_fused or not is_fused)):
        return
    raise UsageError(
        "optimizer-has-no-such-implementation",
        f"{type(optimizer).__name__} has no `{implementation}` implementation here.",
        because="torch offers it only for some optimizers, and fused only for fp32 parameters "
        "without gaps in memory whose gradients are not sparse",
        fix="leave `optimizer_implementation` out, or use `own`",
    )


def set_implementation(optimizer: Optimizer, implementation: OptimizerImplementation) -> None:
    """Switches an optimizer to that implementation; also after its state has been loaded."""
    for group in optimizer.param_groups:
        if implementation != "own":
            group["foreach"] = implementation == "foreach"
        if "fused" not in group:
            continue
        if implementation != "own":
            group["fused"] = implementation == "fused"
        is_on_device = group["fused"] or group.get("capturable")
        for parameter in group["params"]:
            state = optimizer.state.get(parameter)
            if state and isinstance(state.get("step"), Tensor):
                device = parameter.device if is_on_device else "cpu"
                state["step"] = state["step"].to(device, torch.float32)
    # What torch's constructors do for fused=True: its kernels take the scaler's scale themselves.
    if implementation != "own":
        optimizer._step_supports_amp_scaling = implementation == "fused"  # type: ignore[attr-defined]


def set_capturable(optimizer: Optimizer, *, is_captured: bool) -> None:
    """Lets an optimizer keep every number of its update on the device, as a CUDA graph needs it.

    To be called before `set_implementation`, which puts step counts where they belong.
    """
    for group in optimizer.param_groups:
        if "capturable" in group:
            group["capturable"] = is_captured or optimizer.defaults["capturable"]
    # torch says once that such an optimizer should be recorded; some steps never are.
    optimizer._warned_capturable_if_run_uncaptured = True


def forms_to_capture(optimizer: Optimizer) -> tuple[OptimizerImplementation, ...]:
    """The implementations in which an optimizer's whole update is the device's work.

    Those that torch calls capturable, and the fused kernels: all of them read the learning rate
    from a tensor. The loop over parameters asks the device for it.
    """
    if type(optimizer).__module__.partition(".optim.")[0] != "torch" or has_step_hooks(optimizer):
        return ()
    groups = optimizer.param_groups
    if any(isinstance(v, Tensor) for group in groups for n, v in group.items() if n != "params"):
        return ()
    forms: list[OptimizerImplementation] = ["fused"] if can_be_fused(optimizer) else []
    if "capturable" in optimizer.defaults:
        forms.append("foreach")
        forms += [] if optimizer.defaults["foreach"] is False else ["own"]
    elif optimizer.defaults.get("fused"):
        forms.append("own")
    return tuple(forms)


def has_step_hooks(optimizer: Optimizer) -> bool:
    """Whether its steps have hooks."""
    return any((
        optimizer._optimizer_step_pre_hooks,
        optimizer._optimizer_step_post_hooks,
        torch_optimizer._global_optimizer_pre_hooks,
        torch_optimizer._global_optimizer_post_hooks,
    ))  # fmt: skip


def load_optimizer(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Loads a state, of whatever implementation; the optimizer keeps its own."""
    names = ("foreach", "fused", "capturable")
    saved_flags = [{n: group[n] for n in names if n in group} for group in optimizer.param_groups]
    optimizer.load_state_dict(state)
    for group, flags in zip(optimizer.param_groups, saved_flags, strict=True):
        group.update(flags)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    if len(parameters) == len(numbers):
        for number, parameter in zip(numbers, parameters, strict=True):
            stored, loaded = state["state"].get(number), optimizer.state.get(parameter)
            if isinstance(stored, dict) and isinstance(loaded, dict):
                loaded.update(_as_stored(stored, loaded, parameter))


def _as_stored(stored: Any, loaded: Any, parameter: Tensor) -> Any:
    """A loaded state in its own number formats: torch gives it the weight's.

    With weights in fp64 and fp32, some would be rounded, and indices would become floats.
    """
    if isinstance(stored, Tensor) and isinstance(loaded, Tensor):
        is_cast = loaded.dtype == parameter.dtype != stored.dtype
        return stored.to(loaded.device) if is_cast else loaded
    if isinstance(stored, dict) and isinstance(loaded, dict):
        # A step count is where the implementation needs it: set_implementation.
        return {
            key: _as_stored(stored[key], value, parameter) if key in stored else value
            for key, value in loaded.items()
        }
    is_row = isinstance(stored, list | tuple) and type(stored) is type(loaded)
    if is_row and len(stored) == len(loaded):
        return type(loaded)(map(_as_stored, stored, loaded, [parameter] * len(loaded)))
    return loaded


def own_step(optimizer: Optimizer) -> None:
    """The optimizer's own step; without torch's fused kernels where these cannot make it."""
    unfused = _not_for_kernels(optimizer)
    for group in unfused:
        group["fused"] = False
    try:
        optimizer.step()
    finally:
        for group in unfused:
            group["fused"] = True


def scaled_step(optimizer: Optimizer, scaler: torch.amp.GradScaler) -> None:
    """The same under a loss scaler, which skips it if a gradient is not finite.

    torch's fused SGD takes the memory of a first momentum as it comes, and leaves it so if that
    step is skipped; and it cannot begin the momentum of some weights later. So it finds zeros:
    without dampening they come to the same as none.
    """
    for group in optimizer.param_groups:
        if _has_fused_momentum(optimizer, group) and group["dampening"] == 0:
            _begin_at_zero(optimizer, group)
    unfused = _not_for_kernels(optimizer) or _undefined_if_skipped(optimizer)
    if not unfused:
        scaler.step(optimizer)
        return
    # Gradients are divided by the scale before, and the host asks whether they are finite.
    for group in unfused:
        group["fused"] = False
    optimizer._step_supports_amp_scaling = False  # type: ignore[attr-defined]
    try:
        scaler.step(optimizer)
    finally:
        optimizer._step_supports_amp_scaling = True  # type: ignore[attr-defined]
        for group in unfused:
            group["fused"] = True


def _not_for_kernels(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Groups whose step torch's fused kernels cannot make: those with sparse gradients, and those
    of SGD in which only some weights have a momentum.
    """
    return [
        group
        for group in optimizer.param_groups
        if group.get("fused")
        and (
            any(p.grad is not None and p.grad.is_sparse for p in group["params"])
            or len({momentum is None for momentum in _momenta(optimizer, group)}) == 2
        )
    ]


def _undefined_if_skipped(optimizer: Optimizer) -> list[dict[str, Any]]:
    """All fused groups, if one of them would get its first momenta from a step that may be
    skipped.
    """
    is_first = any(None in _momenta(optimizer, group) for group in optimizer.param_groups)
    return [group for group in optimizer.param_groups if group.get("fused")] if is_first else []


def _has_fused_momentum(optimizer: Optimizer, group: dict[str, Any]) -> bool:
    return isinstance(optimizer, SGD) and bool(group["fused"]) and group["momentum"] != 0


def _momenta(optimizer: Optimizer, group: dict[str, Any]) -> list[Tensor | None]:
    """The momenta of the weights that have a gradient now; none for other optimizers."""
    if not _has_fused_momentum(optimizer, group):
        return []
    trained = [parameter for parameter in group["params"] if parameter.grad is not None]
    return [optimizer.state.get(weight, {}).get("momentum_buffer") for weight in trained]


def _begin_at_zero(optimizer: Optimizer, group: dict[str, Any]) -> None:
    for parameter in group["params"]:
        gradient = parameter.grad
        if gradient is None or gradient.is_sparse:
            continue
        state = optimizer.state[parameter]
        if state.get("momentum_buffer") is None:
            state["momentum_buffer"] = torch.zeros_like(parameter)


class FusedStep:
    """An optimizer's step: its own the first time, which makes its state; then as prepared.

    Args:
        optimizer: the optimizer.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._prepared: Callable[[], None] | None = None
        self._is_first = True

    def __call__(self) -> None:
        if self._prepared is not None:
            self._prepared()
            return
        own_step(self._optimizer)
        if self._is_first:
            self._prepared = prepared_step(self._optimizer)
            self._is_first = False


def prepared_step(optimizer: Optimizer) -> Callable[[], None] | None:
    """The fused kernel of an optimizer whose state exists, as a call without detours.

    None where the optimizer is not exactly torch's Adam, AdamW or SGD in fused form, where
    its steps have hooks, where parameters differ in device, or are sharded over ranks.
    """
    kernel = _KERNELS.get(type(optimizer))
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if kernel is None or has_step_hooks(optimizer) or len({p.device for p in parameters}) != 1:
        return None
    if any(map(is_sharded, parameters)):
        return None
    if any(p.grad is not None and p.grad.is_sparse for p in parameters):
        return None
    if any(not group["fused"] or group["differentiable"] for group in optimizer.param_groups):
        return None
    trained = [
        [p for p in group["params"] if p.grad is not None] for group in optimizer.param_groups
    ]
    others = [p for p in parameters if p.grad is None]
    calls = [
        kernel(optimizer, group, members)
        for group, members in zip(optimizer.param_groups, trained, strict=True)
        if members
    ]
    members_by_call = [members for members in trained if members]

    @torch.no_grad()
    def step() -> None:
        gradients = [[p.grad for p in members] for members in members_by_call]
        is_other = any(
            gradient is None or gradient.is_sparse for row in gradients for gradient in row
        )
        if is_other or any(parameter.grad is not None for parameter in others):
            # Not the same parameters as when this was prepared: torch's own way sorts that out.
            own_step(optimizer)
            return
        for call, row in zip(calls, gradients, strict=True):
            call(row)

    return step


Call = Callable[[list[Any]], None]


def _adam_call(optimizer: Optimizer, group: dict[str, Any], members: list[Tensor]) -> Call:
    states = [optimizer.state[parameter] for parameter in members]
    averages = [state["exp_avg"] for state in states]
    squares = [state["exp_avg_sq"] for state in states]
    largest = [state["max_exp_avg_sq"] for state in states] if group["amsgrad"] else []
    counts = [state["step"] for state in states]
    # This field, which older versions lack, makes Adam decay like AdamW.
    is_decoupled = group.get("decoupled_weight_decay", isinstance(optimizer, AdamW))
    kernel = torch._fused_adamw_ if is_decoupled else torch._fused_adam_

    def call(gradients: list[Tensor]) -> None:
        beta1, beta2 = group["betas"]
        torch._foreach_add_(counts, 1)
        kernel(
            members, gradients, averages, squares, largest, counts,
            amsgrad=group["amsgrad"], lr=group["lr"], beta1=beta1, beta2=beta2,
            weight_decay=group["weight_decay"], eps=group["eps"], maximize=group["maximize"],
            grad_scale=None, found_inf=None,
        )  # fmt: skip

    return call


def _sgd_call(optimizer: Optimizer, group: dict[str, Any], members: list[Tensor]) -> Call:
    has_momentum = group["momentum"] != 0
    buffers = [optimizer.state[p]["momentum_buffer"] for p in members] if has_momentum else []

    def call(gradients: list[Tensor]) -> None:
        torch._fused_sgd_(
            members, gradients, buffers,
            weight_decay=group["weight_decay"], momentum=group["momentum"], lr=group["lr"],
            dampening=group["dampening"], nesterov=group["nesterov"],
            maximize=group["maximize"], is_first_step=False, grad_scale=None, found_inf=None,
        )  # fmt: skip

    return call


_KERNELS = {Adam: _adam_call, AdamW: _adam_call, SGD: _sgd_call}


def match_layout(optimizer: Optimizer) -> None:
    """Gives loaded moments the strides of their parameters, which fused kernels take for granted.

    They differ only when a state comes from a session with another memory format.
    """
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            if not isinstance(value, Tensor) or value.shape != parameter.shape:
                continue
            if value.stride() != parameter.stride():
                state[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)
