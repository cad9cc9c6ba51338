"""One optimizer update: forward, backward, clipping, optimizer, without waiting for the device.

Gradients of an accumulated batch are those of the whole batch: a mean over samples is weighted by
each micro-batch's share of them; a sum is divided once, by the count over the whole batch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from flatout.engine.experiment import Experiment
from flatout.engine.feed.feed import MicroBatch
from flatout.engine.model.ema import WeightAverage
from flatout.engine.model.late_buffers import BufferSnapshot
from flatout.engine.optim.optimizers import Optimizers
from flatout.engine.optim.weight_update import WeightUpdate
from flatout.engine.progress import TrainState
from flatout.engine.ranks.gradient_buckets import BucketedGradients
from flatout.engine.ranks.gradient_buffers import (
    GradientBuffers,
    ReplicatedGradients,
    ShardedGradients,
)
from flatout.engine.ranks.gradient_sync import GradientSync, LocalGradients
from flatout.engine.ranks.process_group import MultiRank
from flatout.engine.ranks.protocol import ALONE, RankGroup
from flatout.engine.ranks.synced_passes import SyncedPasses
from flatout.engine.runtime.step_timer import StepTimer
from flatout.engine.runtime.thread_placement import ThreadPlacement
from flatout.engine.runtime.user_code import kind_text
from flatout.engine.step.compiled_loss import StepLoss
from flatout.errors import UsageError

ToDevice = Callable[[Any], Any]


@dataclass(frozen=True, kw_only=True)
class StepParts:
    """The parts of an update; see the recipe's fields for the optional ones.

    position: of the training; followed, not changed. loss: the experiment's; None with a step of
        its own. step_of: makes an optimizer's steps. ranks: those that make the update together.
        passes: keeps them together, where they exchange something in the middle of one. is_spread:
        each rank has a part of every weight. is_plain: gradients travel during the backward pass.
        placement: of the threads that compute it.
    """

    experiment: Experiment
    loss: StepLoss | None
    step_of: Callable[[Optimizer], Callable[[], None]]
    model: nn.Module
    optimizers: Optimizers
    position: TrainState
    autocast: Callable[[], Any]
    scaler: torch.amp.GradScaler | None
    average: WeightAverage | None
    placement: ThreadPlacement
    to_device: ToDevice | None
    clip_norm: float | None
    skips_nonfinite: bool
    ranks: RankGroup = ALONE
    passes: SyncedPasses | None = None
    is_spread: bool = False
    is_plain: bool = False


class EagerStep:
    """Carries out updates.

    exchange: with the other ranks; None where there are none.

    Args:
        parts: what an update is made of.
        timer: notified when each part of the update ends.
    """

    def __init__(self, parts: StepParts, timer: StepTimer) -> None:
        assert parts.loss is not None
        self._parts = parts
        self._loss = parts.loss
        self._timer = timer
        self._weights = WeightUpdate(parts.optimizers, parts.scaler, parts.clip_norm, parts.step_of)
        # The forward pass of a batch that is skipped has moved BatchNorm's averages, too.
        self._buffers = BufferSnapshot(parts.model) if parts.skips_nonfinite else None
        self.exchange: GradientSync | None = None
        self._gradients: GradientBuffers | None = None
        if isinstance(parts.ranks, MultiRank):
            self._gradients = _gradients(parts, parts.ranks, self._weights)
            batch_size = parts.experiment.batch_size
            self.exchange = GradientSync(parts.ranks, parts.model, self._gradients, batch_size)

    def run(self, update: list[MicroBatch]) -> Tensor:
        """Makes one update from the micro-batches of one batch.

        Returns:
            The batch's mean loss: a scalar on the device, detached, not waited for.
        """
        parts = self._parts
        with parts.placement:
            if self._buffers is not None:
                self._buffers.keep()
            loss = self._accumulate(update) if self.exchange is None else self._shared(update)
            if self._buffers is not None and not self._weights.is_finite(loss):
                loss = loss * torch.nan
                self._buffers.restore()
            else:
                self._weights.apply()
                if parts.average is not None:
                    parts.average.update()
            self._weights.clear()
        self._timer.mark("optimizer")
        return loss

    # Why a step that should run in CUDA graphs does not.
    problem: str | None = None

    def enqueue(self, update: list[MicroBatch]) -> bool:
        """Whether `run` will queue this update: not here."""
        return False

    def flush(self) -> None:
        """Runs queued updates: none here."""

    @property
    def has_begun(self) -> bool:
        """Whether an update was interrupted after weights may have changed."""
        return self._weights.has_begun

    def forget(self) -> None:
        """Discards an interrupted update: the next one starts without gradients."""
        self._weights.forget()

    def _accumulate(self, update: list[MicroBatch]) -> Tensor:
        if len(update) == 1:
            value, count = self._forward(*update[0])
            if count is not None:
                value = value / or_one(count)
            self._backward(value)
            return value.detach()
        num_samples = sum(size for _, size in update)
        part = self._part(update, num_samples)
        assert part.loss is not None
        if part.count is None:
            return part.loss
        count = or_one(part.count)
        if isinstance(count, Tensor):
            # A whole number would be divided in fp32, however many bits the loss has.
            count = count.to(part.loss.dtype)
        correction: Any = num_samples / count
        torch._foreach_mul_(self._weights.gradients(), correction)
        corrected: Tensor = part.loss * correction
        return corrected

    def _shared(self, update: list[MicroBatch]) -> Tensor:
        """The same where each rank has its share of the batch, which may be none of it."""
        assert self.exchange is not None
        if self._parts.passes is not None:
            update = self._parts.passes.evened(update)
        part = self._part(update, self._parts.experiment.batch_size)
        loss = self.exchange.shared(part)
        self._timer.mark("exchange")
        return loss

    def _part(self, update: list[MicroBatch], num_samples: int) -> LocalGradients:
        """Goes forward and backward over micro-batches that are so many samples together."""
        total: Tensor | None = None
        total_count: Any = None
        for number, (batch, size) in enumerate(update, 1):
            if number == len(update) and self._gradients is not None:
                self._gradients.expect_last_pass()
            with self._pass_of(size):
                value, count = self._forward(batch, size)
                if size == 0 and count is not None:
                    # It fills up a pass of the others, and counts for nothing.
                    value, count = value * 0.0, count * 0
                # Sums are divided by the number of samples here, only to stay in a format's range,
                # and put right later, when the whole batch's count is known.
                value = value * (size / num_samples) if count is None else value / num_samples
                self._backward(value)
            detached = value.detach()
            total = detached if total is None else total + detached
            if count is not None:
                total_count = count if total_count is None else total_count + count
        own = sum(size for _, size in update)
        return LocalGradients(loss=total, count=total_count, num_samples=own)

    def _pass_of(self, size: int) -> AbstractContextManager[None]:
        passes = self._parts.passes
        if passes is None:
            return contextlib.nullcontext()
        return passes.of(size, self._parts.model.buffers())

    def _forward(self, batch: Any, size: int) -> tuple[Tensor, Any]:
        parts = self._parts
        if parts.to_device is not None:
            batch = parts.to_device(batch)
            self._timer.mark("copy")
        with parts.autocast():
            result = self._loss(parts.model, batch, size)
        value, count = value_and_count(result, "`loss(model, batch)` returned")
        if not isinstance(value, Tensor) or value.dim() != 0 or not value.requires_grad:
            raise bad_loss(value, "`loss(model, batch)` returned")
        self._timer.mark("forward")
        return value, count

    def _backward(self, value: Tensor) -> None:
        self._weights.backward(value)
        self._timer.mark("backward")


def _gradients(parts: StepParts, group: MultiRank, weights: WeightUpdate) -> GradientBuffers:
    if not parts.is_spread and parts.is_plain:
        return BucketedGradients(weights.parameters, group.connection.tensors)
    if not parts.is_spread:
        return ReplicatedGradients(weights.parameters)
    gradients = ShardedGradients(weights.parameters)
    weights.norm = gradients.norm
    return gradients


def or_one(count: Any) -> Any:
    """A batch without a single counted token has a sum of zero: 0 / 1, not 0 / 0."""
    return count + (count == 0) if isinstance(count, Tensor) else count or 1


def value_and_count(result: Any, prefix: str) -> tuple[Any, Any]:
    """A loss and its count, None where it is a mean; prefix: how a message about it begins.

    Raises:
        UsageError: loss-is-not-a-scalar.
    """
    if not isinstance(result, tuple):
        return result, None
    if len(result) != 2:
        raise UsageError(
            "loss-is-not-a-scalar",
            f"{prefix} a tuple of length {len(result)}.",
            because="a tuple must be a sum and its count",
            fix="return only the loss, a mean over the batch; or (loss.sum(), count)",
        )
    return result[0], result[1]


def bad_loss(value: Any, prefix: str) -> UsageError:
    """The error for an invalid loss; prefix: how its message begins."""
    is_tensor = isinstance(value, Tensor)
    is_cut_off = is_tensor and value.dim() == 0
    what = kind_text(value)
    if is_tensor:
        shape = f"of shape {tuple(value.shape)}"
        what = f"a tensor {'that does not depend on any weight' if is_cut_off else shape}"
    if is_cut_off:
        return UsageError(
            "loss-is-not-a-scalar",
            f"{prefix} {what}.",
            because="without a gradient, no weights can be updated",
            fix="do not use .detach(), .data or torch.no_grad() on the way to it, and check that "
            "the weights to train have requires_grad",
        )
    return UsageError(
        "loss-is-not-a-scalar",
        f"{prefix} {what}.",
        because="an update needs one number: the mean over the batch, or a sum and its count",
        fix="return the loss: is a `return` missing?"
        if value is None
        else "return loss.mean(), or (loss.sum(), count)",
    )
