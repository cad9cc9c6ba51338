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

from flatout.engine.feed import MicroBatch
from flatout.engine.group import Group
from flatout.engine.late_buffers import KeptBuffers
from flatout.engine.meter import Meter
from flatout.engine.step import StepParts, bad_loss, or_one, value_and_count
from flatout.engine.step_exchange import SharedUpdate, StepExchange
from flatout.engine.weight_update import WeightUpdate
from flatout.errors import UsageError, nearest


class Updates:
    """What an experiment's `step(updates, model, batch)` makes its updates with.

    `updates["generator"](loss)` makes one of the optimizer that the experiment named `generator`;
    a single optimizer without a name is `updates["optimizer"]`.
    """

    def __init__(self, parts: StepParts, meter: Meter, exchange: StepExchange | None) -> None:
        self._position = parts.position
        self._buffers = KeptBuffers(parts.model) if parts.skips_nonfinite else None
        self._by_name: dict[str, Update] = {}
        for name, optimizer in parts.optimizers.by_name.items():
            weights = WeightUpdate([optimizer], parts.scaler, parts.clip_norm)
            shared = None
            if exchange is not None:
                shared = exchange.update_of(parts.model, weights.parameters)
            self._by_name[name] = Update(name, weights, meter, self._buffers, shared)

    @property
    def step(self) -> int:
        """Steps made before this one; goes on where it was after a resume."""
        return self._position.step

    def __getitem__(self, name: str) -> Update:
        if name not in self._by_name:
            raise UsageError(
                "unknown-optimizer",
                f"`updates[{name!r}]`: the experiment has no optimizer of that name.",
                because=f"there are: {', '.join(self._by_name)}",
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
        """Forgets the gradients of a step that was broken off."""
        for update in self._by_name.values():
            update.forget()

    def num_made(self) -> int:
        """Updates of this step."""
        return sum(update.num_made for update in self._by_name.values())

    def num_left_out(self) -> int:
        """Updates that were asked for in this step, but whose loss or gradient was not finite."""
        return sum(update.num_left_out for update in self._by_name.values())


class Update:
    """Makes updates of one optimizer's weights; got from `Updates` by the optimizer's name."""

    def __init__(
        self,
        name: str,
        weights: WeightUpdate,
        meter: Meter,
        buffers: KeptBuffers | None,
        shared: SharedUpdate | None,
    ) -> None:
        self._name = name
        self._weights = weights
        self._meter = meter
        self._buffers = buffers
        self._shared = shared
        self._device_type = weights.parameters[0].device.type
        self.num_made = 0
        self.num_left_out = 0

    def __call__(self, loss: Tensor, *, retain_graph: bool = False) -> Tensor:
        """Backward, clipping and the optimizer's step; the gradients are empty before and after.

        Gradients reach this optimizer's weights alone: those of others stay as they are, though
        the loss depends on them too.

        Args:
            loss: a scalar that depends on the optimizer's weights; on several ranks a mean over
                this one's samples.
            retain_graph: keeps what backward needs, for another update from the same forward pass.

        Returns:
            The loss of the whole batch, detached.

        Raises:
            UsageError: loss-is-not-a-scalar.
        """
        said = f"`updates[{self._name!r}]` was given"
        if not isinstance(loss, Tensor) or loss.dim() != 0 or not loss.requires_grad:
            raise bad_loss(loss, said)
        self._meter.mark("forward")
        own = loss if self._shared is None else self._shared.weighed(loss)
        with self._without_autocast():
            self._weights.clear()
            self._weights.backward_to_own(own, retain_graph=retain_graph)
            self._meter.mark("backward")
            if not self._weights.gradients():
                raise bad_loss(loss, said)
            whole = loss.detach()
            if self._shared is not None:
                whole = self._shared.shared(own)
                self._meter.mark("exchange")
            self._apply(whole)
            self._weights.clear()
        # Autocast keeps the weights it has cast until it ends: they have just changed.
        torch.clear_autocast_cache()
        self._meter.mark("optimizer")
        return whole

    def forget(self) -> None:
        """Forgets the gradients of an update that was broken off."""
        self._weights.forget()

    def _without_autocast(self) -> Any:
        # Backward computes in the types of forward; autocast would change them once more.
        if torch.is_autocast_enabled(self._device_type):
            return torch.autocast(self._device_type, enabled=False)
        return contextlib.nullcontext()

    def _apply(self, loss: Tensor) -> None:
        if self._buffers is not None and not self._weights.is_finite(loss):
            self._buffers.put_back()
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
        meter: told when each part of the step ends.
    """

    def __init__(self, parts: StepParts, meter: Meter) -> None:
        assert parts.experiment.step is not None
        self._parts = parts
        self._step = parts.experiment.step
        self._meter = meter
        self.exchange: StepExchange | None = None
        if isinstance(parts.ranks, Group):
            assert parts.passes is not None
            batch_size = parts.experiment.batch_size
            self.exchange = StepExchange(parts.ranks, parts.passes, batch_size)
        self._updates = Updates(parts, meter, self.exchange)

    # A step that was broken off may have made the first of several updates.
    has_begun = True
    problem: str | None = None

    def prepare(self, update: list[MicroBatch]) -> bool:
        """See Step."""
        return False

    def finish(self) -> None:
        """See Step."""

    def forget(self) -> None:
        """See Step."""
        self._updates.forget()

    def run(self, update: list[MicroBatch]) -> Tensor | dict[str, Tensor]:
        """Makes one step with one batch.

        Returns:
            What the experiment tells of its loss: scalars on the device, detached.

        Raises:
            UsageError: step-without-update, loss-is-not-a-scalar, unknown-optimizer.
        """
        parts, updates = self._parts, self._updates
        batch = update[0][0] if self.exchange is None else self.exchange.begin(update)
        if parts.place is not None:
            batch = parts.place(batch)
            self._meter.mark("copy")
        updates.begin()
        with self._own_pass(), parts.autocast():
            told = self._step(updates, parts.model, batch)
        if updates.num_made() and parts.average is not None:
            parts.average.update()
        if not updates.num_made() and not updates.num_left_out():
            raise UsageError(
                "step-without-update",
                f"step {updates.step + 1:,} changed no weights.",
                because="`step` called none of the updates it was given",
                fix="""call them: updates["optimizer"](loss)""",
            )
        # A step that is not whole is told as what it is: not a number.
        factor = torch.nan if updates.num_left_out() else None
        named = dict(told) if isinstance(told, Mapping) and told else {"": told}
        given = {name: _pair(value) for name, value in named.items()}
        if self.exchange is not None:
            losses = self.exchange.told(given)
        else:
            losses = {name: _mean(*pair) for name, pair in given.items()}
        if factor is not None:
            losses = {name: loss * factor for name, loss in losses.items()}
        self._meter.mark("forward")
        return losses if isinstance(told, Mapping) and told else losses[""]

    def _own_pass(self) -> AbstractContextManager[None]:
        """What fills up a pass of the others' counts for nothing."""
        parts, exchange = self._parts, self.exchange
        if exchange is None or parts.passes is None:
            return contextlib.nullcontext()
        return parts.passes.of(exchange.own_samples)


def _pair(told: Any) -> tuple[Tensor, Any]:
    value, count = value_and_count(told, "`step(updates, model, batch)` returned")
    if not isinstance(value, Tensor) or value.dim() != 0:
        raise bad_loss(value, "`step(updates, model, batch)` returned")
    return value.detach(), count


def _mean(value: Tensor, count: Any) -> Tensor:
    return value if count is None else value / or_one(count)
