"""A step that the experiment writes itself, with an update for each of its optimizers.

flatout still does what is around it: autocast, the scaler, clipping, non-finite losses, averages.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from flatout.engine.feed.feed import MicroBatch
from flatout.engine.model.late_buffers import BufferSnapshot
from flatout.engine.optim.weight_update import WeightUpdate
from flatout.engine.ranks.custom_step_sync import CustomStepSync, SharedUpdate
from flatout.engine.ranks.process_group import MultiRank
from flatout.engine.runtime.step_timer import StepTimer
from flatout.engine.step.step import StepParts, bad_loss, or_one, value_and_count
from flatout.errors import UsageError, nearest


class UpdatesByName:
    """The `Updates` that an experiment's step is given: one update for each optimizer."""

    def __init__(self, parts: StepParts, timer: StepTimer, exchange: CustomStepSync | None) -> None:
        self._position = parts.position
        self._buffers = BufferSnapshot(parts.model) if parts.skips_nonfinite else None
        self._by_name: dict[str, NamedUpdate] = {}
        for name, optimizer in parts.optimizers.by_name.items():
            weights = WeightUpdate([optimizer], parts.scaler, parts.clip_norm)
            shared = None
            if exchange is not None:
                shared = exchange.update_of(parts.model, weights.parameters)
            self._by_name[name] = NamedUpdate(name, weights, timer, self._buffers, shared)

    @property
    def step(self) -> int:
        """Steps made before this one, also across resumes."""
        return self._position.step

    def __getitem__(self, name: str) -> NamedUpdate:
        if name not in self._by_name:
            raise UsageError(
                "unknown-optimizer",
                f"`updates[{name!r}]`: the experiment has no optimizer of that name.",
                because=f"it has: {', '.join(self._by_name)}",
                fix=nearest(str(name), self._by_name),
            )
        return self._by_name[name]

    def begin(self) -> None:
        """A step begins."""
        if self._buffers is not None:
            self._buffers.keep()
        for update in self._by_name.values():
            update.num_made = update.num_left_out = 0

    def forget(self) -> None:
        """Discards the gradients of an interrupted step."""
        for update in self._by_name.values():
            update.forget()

    def num_made(self) -> int:
        """Updates of this step."""
        return sum(update.num_made for update in self._by_name.values())

    def num_left_out(self) -> int:
        """Updates that were requested in this step, but whose loss or gradient was not finite."""
        return sum(update.num_left_out for update in self._by_name.values())


class NamedUpdate:
    """Makes updates of one optimizer's weights; got from `UpdatesByName`."""

    def __init__(
        self,
        name: str,
        weights: WeightUpdate,
        timer: StepTimer,
        buffers: BufferSnapshot | None,
        shared: SharedUpdate | None,
    ) -> None:
        self._name = name
        self._weights = weights
        self._timer = timer
        self._buffers = buffers
        self._shared = shared
        self._device_type = weights.parameters[0].device.type
        self.num_made = 0
        self.num_left_out = 0

    def __call__(self, loss: Tensor, *, retain_graph: bool = False) -> Tensor:
        """Makes the update; see `OptimizerUpdate`.

        Raises:
            UsageError: loss-is-not-a-scalar.
        """
        prefix = f"`updates[{self._name!r}]` was given"
        if not isinstance(loss, Tensor) or loss.dim() != 0 or not loss.requires_grad:
            raise bad_loss(loss, prefix)
        self._timer.mark("forward")
        own = loss if self._shared is None else self._shared.weighed(loss)
        with self._without_autocast():
            self._weights.clear()
            self._weights.backward_to_own(own, retain_graph=retain_graph)
            self._timer.mark("backward")
            if not self._weights.gradients():
                raise bad_loss(loss, prefix)
            whole = loss.detach()
            if self._shared is not None:
                whole = self._shared.shared(own)
                self._timer.mark("exchange")
            self._apply(whole)
            self._weights.clear()
        # Autocast keeps the weights it has cast until it ends: they have just changed.
        torch.clear_autocast_cache()
        self._timer.mark("optimizer")
        return whole

    def forget(self) -> None:
        """Discards the gradients of an interrupted update."""
        self._weights.forget()

    def _without_autocast(self) -> Any:
        # Backward computes in the types of forward; autocast would change them once more.
        if torch.is_autocast_enabled(self._device_type):
            return torch.autocast(self._device_type, enabled=False)
        return contextlib.nullcontext()

    def _apply(self, loss: Tensor) -> None:
        if self._buffers is not None and not self._weights.is_finite(loss):
            self._buffers.restore()
            self.num_left_out += 1
            return
        self._weights.apply()
        self.num_made += 1
        if self._buffers is not None:
            self._buffers.keep()


class CustomStep:
    """Carries out steps that the experiment writes itself.

    Args:
        parts: what a step is made of.
        timer: notified when each part of the step ends.
    """

    def __init__(self, parts: StepParts, timer: StepTimer) -> None:
        assert parts.experiment.step is not None
        self._parts = parts
        self._step = parts.experiment.step
        self._timer = timer
        self.exchange: CustomStepSync | None = None
        if isinstance(parts.ranks, MultiRank):
            assert parts.passes is not None
            batch_size = parts.experiment.batch_size
            self.exchange = CustomStepSync(parts.ranks, parts.passes, batch_size)
        self._updates = UpdatesByName(parts, timer, self.exchange)

    # An interrupted step may have made the first of several updates.
    has_begun = True
    problem: str | None = None

    def enqueue(self, update: list[MicroBatch]) -> bool:
        """See EagerStep."""
        return False

    def flush(self) -> None:
        """See EagerStep."""

    def forget(self) -> None:
        """See EagerStep."""
        self._updates.forget()

    def run(self, update: list[MicroBatch]) -> Tensor | dict[str, Tensor]:
        """Makes one step with one batch.

        Returns:
            The loss values that the experiment returns: scalars on the device, detached.

        Raises:
            UsageError: step-without-update, loss-is-not-a-scalar, unknown-optimizer.
        """
        parts, updates = self._parts, self._updates
        batch = update[0][0] if self.exchange is None else self.exchange.begin(update)
        if parts.to_device is not None:
            batch = parts.to_device(batch)
            self._timer.mark("copy")
        updates.begin()
        with self._own_pass(), parts.placement, parts.autocast():
            result = self._step(updates, parts.model, batch)
        if updates.num_made() and parts.average is not None:
            parts.average.update()
        if not updates.num_made() and not updates.num_left_out():
            raise UsageError(
                "step-without-update",
                f"step {updates.step + 1:,} changed no weights.",
                because="`step` called none of its `updates`",
                fix="""call one: updates["optimizer"](loss)""",
            )
        # The loss of an incomplete step is logged as NaN.
        factor = torch.nan if updates.num_left_out() else None
        named = dict(result) if isinstance(result, Mapping) and result else {"": result}
        pairs = {name: _loss_and_count(value) for name, value in named.items()}
        if self.exchange is not None:
            losses = self.exchange.averaged(pairs)
        else:
            losses = {name: _mean(*pair) for name, pair in pairs.items()}
        if factor is not None:
            losses = {name: loss * factor for name, loss in losses.items()}
        self._timer.mark("forward")
        return losses if isinstance(result, Mapping) and result else losses[""]

    def _own_pass(self) -> AbstractContextManager[None]:
        """The context of this rank's own pass: a mere filler for the others counts for nothing."""
        parts, exchange = self._parts, self.exchange
        if exchange is None or parts.passes is None:
            return contextlib.nullcontext()
        return parts.passes.of(exchange.own_samples)


def _loss_and_count(result: Any) -> tuple[Tensor, Any]:
    value, count = value_and_count(result, "`step(updates, model, batch)` returned")
    if not isinstance(value, Tensor) or value.dim() != 0:
        raise bad_loss(value, "`step(updates, model, batch)` returned")
    return value.detach(), count


def _mean(value: Tensor, count: Any) -> Tensor:
    return value if count is None else value / or_one(count)
