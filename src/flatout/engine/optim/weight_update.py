"""One weight update from a loss: backward, clipping, the optimizers' steps, clearing."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.optim import Optimizer

from flatout.engine.optim.fused_step import FusedStep, scaled_step
from flatout.engine.tensors.sharded import local_part, scale


class WeightUpdate:
    """Updates the weights of some optimizers, which share a loss.

    parameters: all that these optimizers train, and nothing else is touched.
    has_begun: the optimizers have started to change weights since the gradients were cleared.
    norm: gives that of all gradients, where each rank has parts of them; None computes it here.

    Args:
        optimizers: the optimizers.
        scaler: of fp16, else None.
        clip_norm: largest 2-norm of all their gradients together; None does not clip.
        step_of: makes an optimizer's steps.
    """

    def __init__(
        self,
        optimizers: Iterable[Optimizer],
        scaler: torch.amp.GradScaler | None,
        clip_norm: float | None,
        step_of: Callable[[Optimizer], Callable[[], None]] = FusedStep,
    ) -> None:
        self._optimizers = list(optimizers)
        self._scaler = scaler
        self._clip_norm = clip_norm
        self.has_begun = False
        self.norm: Callable[[], Tensor] | None = None
        self._steps = [step_of(optimizer) for optimizer in self._optimizers]
        self.parameters: list[Tensor] = [
            parameter
            for optimizer in self._optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
        ]

    def backward(self, loss: Tensor) -> None:
        """Adds the gradients of a loss to those of every weight that it depends on."""
        (loss if self._scaler is None else self._scaler.scale(loss)).backward()

    def backward_to_own(self, loss: Tensor, *, retain_graph: bool) -> None:
        """Adds the gradients of a loss to these parameters alone.

        Gradients of other weights are not even computed, except where the way to these leads
        through them.
        """
        own = [parameter for parameter in self.parameters if parameter.requires_grad]
        scaled = loss if self._scaler is None else self._scaler.scale(loss)
        scaled.backward(retain_graph=retain_graph, inputs=own)

    def gradients(self) -> list[Tensor]:
        """The existing gradients; of a sparse one its stored elements."""
        return [_elements(p) for p in self.parameters if p.grad is not None]

    def is_finite(self, loss: Tensor) -> bool:
        """Whether the loss and every gradient are finite; a scaler looks at gradients itself."""
        gradients = self.gradients()
        if self.norm is not None:
            return bool(loss.isfinite() & self.norm().isfinite())
        if self._scaler is not None or not gradients:
            return bool(loss.isfinite())
        norms = torch._foreach_norm(gradients, float("inf"))
        return bool(torch.stack([loss.float(), *(norm.float() for norm in norms)]).isfinite().all())

    def apply(self) -> None:
        """Clips, and lets the optimizers make their steps."""
        if self._scaler is not None:
            self._apply_scaled(self._scaler)
            return
        if self._clip_norm is not None:
            self._clip(self._clip_norm)
        self.has_begun = True
        for step in self._steps:
            step()

    def _clip(self, largest: float) -> None:
        # A scaler's gradients have been divided since their norm was taken.
        if self.norm is not None and self._scaler is None:
            self._scale(largest, self.norm())
        elif any(_is_sparse(parameter) for parameter in self.parameters):
            self._scale(largest, torch.nn.utils.get_total_norm(self.gradients()))
        else:
            torch.nn.utils.clip_grad_norm_(self.parameters, largest)

    def _scale(self, largest: float, norm: Tensor) -> None:
        """Clips as torch does it, with a norm that is known."""
        factor = (largest / (norm + 1e-6)).clamp(max=1.0)
        scale([local_part(gradient) for gradient in self.gradients()], factor)

    def _apply_scaled(self, scaler: torch.amp.GradScaler) -> None:
        # A scaler does not take an optimizer none of whose weights was used.
        used = [optimizer for optimizer in self._optimizers if _has_gradient(optimizer)]
        if self._clip_norm is not None:
            for optimizer in used:
                scaler.unscale_(optimizer)
            self._clip(self._clip_norm)
        self.has_begun = True
        for optimizer in used:
            scaled_step(optimizer, scaler)
        scaler.update()

    def clear(self) -> None:
        """Forgets the gradients of these parameters."""
        for parameter in self.parameters:
            parameter.grad = None
        self.has_begun = False

    def forget(self) -> None:
        """Discards an update that was interrupted before it changed the weights."""
        self.clear()
        scaler = self._scaler
        if scaler is not None:
            # Which gradients it has unscaled; and a scale that it was about to make.
            scaler._per_optimizer_states.clear()
            if scaler._growth_tracker is None:
                scaler._scale = None


def _is_sparse(parameter: Tensor) -> bool:
    return parameter.grad is not None and parameter.grad.is_sparse


def _elements(parameter: Tensor) -> Tensor:
    """A weight's gradient; a sparse one is coalesced first, and its elements returned.

    Before, several entries may belong to one element, and must be added up.
    """
    gradient = parameter.grad
    assert gradient is not None
    if not gradient.is_sparse:
        return gradient
    if not gradient.is_coalesced():
        gradient = parameter.grad = gradient.coalesce()
    return gradient._values()


def _has_gradient(optimizer: Optimizer) -> bool:
    return any(p.grad is not None for group in optimizer.param_groups for p in group["params"])
