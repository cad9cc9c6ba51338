"""One optimizer update: forward, backward, clipping, optimizer, without waiting for the device.

Gradients of an accumulated batch are those of the whole batch: a mean over samples is weighted by
each micro-batch's share of them; a sum is divided once, by the count over the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from flatout.engine.ema import WeightAverage
from flatout.engine.feed import MicroBatch
from flatout.engine.meter import Meter
from flatout.engine.optim import own_step, prepared_step
from flatout.errors import UsageError

Place = Callable[[Any], Any]


@dataclass(frozen=True, kw_only=True)
class StepParts:
    """What an update is made of; see the recipe's fields for those that are choices."""

    model: nn.Module
    optimizer: Optimizer
    loss: Callable[[nn.Module, Any], Any]
    autocast: Callable[[], Any]
    scaler: torch.amp.GradScaler | None
    average: WeightAverage | None
    place: Place | None
    clip_norm: float | None
    skips_nonfinite: bool


class Step:
    """Carries out updates.

    Args:
        parts: what an update is made of.
        meter: told when each part of the update ends.
    """

    def __init__(self, parts: StepParts, meter: Meter) -> None:
        self._parts = parts
        self._meter = meter
        self._parameters = [
            parameter for group in parts.optimizer.param_groups for parameter in group["params"]
        ]
        self._prepared: Callable[[], None] | None = None
        self._num_plain_steps = 0
        # The forward pass of a batch that is skipped has moved BatchNorm's averages, too.
        self._buffers = list(parts.model.buffers()) if parts.skips_nonfinite else []

    def run(self, update: list[MicroBatch]) -> Tensor:
        """Makes one update from the micro-batches of one batch.

        Returns:
            The batch's mean loss: a scalar on the device, detached, not waited for.
        """
        parts = self._parts
        buffers = [buffer.clone() for buffer in self._buffers]
        loss = self._accumulate(update)
        if parts.skips_nonfinite and not self._is_finite(loss):
            loss = loss * torch.nan
            for buffer, kept in zip(self._buffers, buffers, strict=True):
                buffer.copy_(kept)
        else:
            self._optimize()
            if parts.average is not None:
                parts.average.update()
        for parameter in self._parameters:
            parameter.grad = None
        self._meter.mark("optimizer")
        return loss

    def _is_finite(self, loss: Tensor) -> bool:
        """Whether the loss and every gradient are finite; a scaler looks at gradients itself."""
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        if self._parts.scaler is not None or not gradients:
            return bool(loss.isfinite())
        norms = torch._foreach_norm(gradients, float("inf"))
        return bool(torch.stack([loss.float(), *(norm.float() for norm in norms)]).isfinite().all())

    def _accumulate(self, update: list[MicroBatch]) -> Tensor:
        if len(update) == 1:
            batch, _ = update[0]
            value, count = self._forward(batch)
            if count is not None:
                value = value / _or_one(count)
            self._backward(value)
            return value.detach()
        num_samples = sum(size for _, size in update)
        total: Tensor | None = None
        total_count: Any = None
        for batch, size in update:
            value, count = self._forward(batch)
            # Sums are divided by the number of samples here, only to stay in a format's range,
            # and put right below, when the whole batch's count is known.
            value = value * (size / num_samples) if count is None else value / num_samples
            self._backward(value)
            detached = value.detach()
            total = detached if total is None else total + detached
            if count is not None:
                total_count = count if total_count is None else total_count + count
        assert total is not None
        if total_count is None:
            return total
        correction: Any = num_samples / _or_one(total_count)
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        torch._foreach_mul_(gradients, correction)
        corrected: Tensor = total * correction
        return corrected

    def _forward(self, batch: Any) -> tuple[Tensor, Any]:
        parts = self._parts
        if parts.place is not None:
            batch = parts.place(batch)
            self._meter.mark("copy")
        with parts.autocast():
            result = parts.loss(parts.model, batch)
        value, count = result if isinstance(result, tuple) else (result, None)
        if not isinstance(value, Tensor) or value.dim() != 0 or not value.requires_grad:
            raise _bad_loss(value)
        self._meter.mark("forward")
        return value, count

    def _backward(self, value: Tensor) -> None:
        scaler = self._parts.scaler
        (value if scaler is None else scaler.scale(value)).backward()
        self._meter.mark("backward")

    def _optimize(self) -> None:
        parts = self._parts
        if parts.clip_norm is not None:
            if parts.scaler is not None:
                parts.scaler.unscale_(parts.optimizer)
            torch.nn.utils.clip_grad_norm_(self._parameters, parts.clip_norm)
        if parts.scaler is not None:
            parts.scaler.step(parts.optimizer)
            parts.scaler.update()
        elif self._prepared is not None:
            self._prepared()
        else:
            # The first update makes the optimizer's state; only then can its call be prepared.
            own_step(parts.optimizer)
            if self._num_plain_steps == 0:
                self._prepared = prepared_step(parts.optimizer)
            self._num_plain_steps += 1


def _or_one(count: Any) -> Any:
    """A batch without a single counted token has a sum of zero: 0 / 1, not 0 / 0."""
    return count + (count == 0) if isinstance(count, Tensor) else count or 1


def _bad_loss(value: Any) -> UsageError:
    is_tensor = isinstance(value, Tensor)
    what = f"a {type(value).__name__}"
    if is_tensor:
        is_cut_off = value.dim() == 0
        shape = f"of shape {tuple(value.shape)}"
        what = f"a tensor {'that does not depend on any weight' if is_cut_off else shape}"
    return UsageError(
        "loss-is-not-a-scalar",
        f"`loss(model, batch)` returned {what}.",
        because="an update needs one number: the mean over the batch, or a sum and its count",
        fix="return loss.mean(), or (loss.sum(), count)",
    )
