"""Parts of a step by themselves, with a change and without it: what a prediction is made from.

Each takes about a second, in the process that has been profiled. They are not the step: what else
a change costs or gains there, `flatout profile --prove` measures.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from flatout.engine.model import precision
from flatout.engine.optim.fused_step import FusedStep
from flatout.engine.optim.optimizers import Optimizers
from flatout.engine.profile.data_probes import cut, repeated
from flatout.engine.profile.model_calls import repeated_calls
from flatout.engine.session.session import Session
from flatout.engine.step.step import value_and_count
from flatout.engine.tensors.nested import placer, tensors_in, with_tensors
from flatout.schema.recipe import Precision
from flatout.schema.step_profile import MODEL_ALONE, OperatorProbe
from flatout.schema.tuning import Interval
from flatout.schema.units import counted_text
from flatout.system.clock import elapsed_s
from flatout.tune.statistics import speedup

_LIMIT_S = 1.2
_LEAST_PAIRS, _MOST_PAIRS = 5, 25
_LEAST_BLOCK_S = 0.01
_LARGER = 4
_LEAST_PADDING = 0.1


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Seconds of a plain step, and of its parts by StepTimer."""

    step_s: float
    phases_s: dict[str, float]

    @property
    def passes_s(self) -> float:
        """Of forward and backward; on a GPU, all that is neither data nor optimizer."""
        known = self.phases_s.get("forward", 0.0) + self.phases_s.get("backward", 0.0)
        others = self.phases_s.get("data", 0.0) + self.phases_s.get("optimizer", 0.0)
        return known or max(0.0, self.step_s - others)

    @property
    def computed_s(self) -> float:
        """Of all but waiting for data."""
        return max(0.0, self.step_s - self.phases_s.get("data", 0.0))


class Probes:
    """The probes of one session; its state does not matter any more afterwards.

    Args:
        session: that has been profiled.
        batch: a micro-batch of it, as its feed gives them, with its number of samples.
        times: of its steps.
    """

    def __init__(self, session: Session, batch: tuple[Any, int], times: StepTimes) -> None:
        self._session = session
        self._recipe = session.recipe
        self._batch, self._size = batch
        self._times = times
        is_channels_last = session.recipe.memory_format.value == "channels_last"
        self._place = placer(session.device, is_channels_last)

    def all(self, padding: float | None, *, has_lines: bool) -> Iterator[OperatorProbe]:
        """Each probe that makes sense here; one that fails has the reason.

        padding: share of padded positions in a batch; None where there are none. has_lines: lines
        of the user's code are known, of which some may be outside of the model.
        """
        if self._session.experiment.loss is not None:
            yield from self._of_passes(padding)
            if has_lines:
                yield self._model_alone()
        if self._recipe.optimizer_implementation.value != "fused":
            yield self._optimizer()

    def _of_passes(self, padding: float | None) -> Iterator[OperatorProbe]:
        recipe, device = self._recipe, self._session.device
        weights = list(self._session.model.parameters())
        if any(weight.dtype == torch.float64 for weight in weights):
            # The optimizer's numbers are shorter as well.
            yield self._passes(
                "float64", self._in_fp32, note="in fp32", affected_s=self._times.computed_s
            )
        elif recipe.precision.value in ("fp32", "tf32") and _has_bf16(device):
            yield self._passes(
                "fp32-without-need",
                lambda: self._run(self._session.model, precision_name="bf16"),
                changes={"precision": "bf16"},
                note="in bf16 autocast",
            )
        has_layout = any(weight.dim() == 4 for weight in weights)
        if has_layout and recipe.memory_format.value == "contiguous":
            yield self._passes(
                "slow-layout",
                self._in_channels_last,
                changes={"memory_format": "channels_last"},
                note="in channels_last",
            )
        if recipe.attention.value == "math":
            yield self._passes(
                "slow-attention",
                lambda: self._run(self._session.model, attention="auto"),
                changes={"attention": "auto"},
                note="with torch's choice of attention",
            )
        if device.type == "cpu":
            yield from self._threads()
        if padding is not None and padding >= _LEAST_PADDING:
            yield self._passes(
                "padding-waste",
                lambda: self._run(self._session.model, batch=cut(self._batch, padding)),
                note=f"without the last {100 * padding:.0f} % of each row",
            )
        if recipe.activation_checkpointing.value:
            yield self._passes(
                "needless-checkpointing",
                self._without_checkpointing,
                changes={"activation_checkpointing": False},
                note="without computing activations again",
            )
        yield self._larger_batch()

    def _run(
        self,
        model: nn.Module,
        *,
        precision_name: Precision | None = None,
        attention: Any = None,
        batch: Any = None,
        place: Any = None,
    ) -> Callable[[], None]:
        """Forward and backward of the batch, once for each call."""
        loss = self._session.experiment.loss
        assert loss is not None
        settings = _forward_settings(self._session, precision_name, attention)
        placed = self._batch if batch is None else batch
        place = place or self._place
        if place is not None:
            placed = place(placed)

        def run() -> None:
            with settings():
                value, count = value_and_count(loss(model, placed), "")
            (value if count is None else value / count).backward()
            for weight in model.parameters():
                weight.grad = None

        return run

    def _passes(
        self,
        advice: str,
        changed: Callable[[], Callable[[], None]],
        *,
        changes: dict[str, Any] | None = None,
        note: str,
        around: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext,
        affected_s: float | None = None,
    ) -> OperatorProbe:
        """Forward and backward of one batch, as it is and changed, in turns.

        affected_s: of a step, by the change; None: forward and backward.
        """
        ratio, problem = None, None
        try:
            before, after = self._run(self._session.model), changed()
            ratio = _ratio(before, after, self._session.device, around)
        # A model that cannot be copied, an operator without a kernel, too little memory.
        except Exception as error:  # noqa: BLE001 - a probe must not end a profile
            problem = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        return OperatorProbe(
            advice=advice,
            affected_s=self._times.passes_s if affected_s is None else affected_s,
            ratio=ratio,
            changes=changes or {},
            note=f"forward and backward of one batch {note}",
            problem=problem,
        )

    def _in_fp32(self) -> Callable[[], None]:
        model = copy.deepcopy(self._session.model).float()
        batch = with_tensors(
            self._batch,
            iter([one.float() if one.is_floating_point() else one
                  for one in tensors_in(self._batch)]),
        )  # fmt: skip
        return self._run(model, batch=batch)

    def _in_channels_last(self) -> Callable[[], None]:
        model = copy.deepcopy(self._session.model)
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return self._run(model, place=placer(self._session.device, True))

    def _without_checkpointing(self) -> Callable[[], None]:
        model = copy.deepcopy(self._session.model)
        for module in model.modules():
            # What flatout has put in place of a block's own `forward`.
            if type(vars(module).get("forward")).__module__.startswith("flatout."):
                del vars(module)["forward"]
        return self._run(model)

    def _threads(self) -> Iterator[OperatorProbe]:
        """With one thread, and with one for each core, where that is another number."""
        own, num_cores = self._recipe.num_threads.value, self._session.facts.num_cores
        for count in sorted({1, num_cores} - {own}):
            advice = "too-many-threads" if count < own else "too-few-threads"
            yield self._passes(
                advice,
                lambda: self._run(self._session.model),
                changes={"num_threads": count},
                note=f"with num_threads={count}",
                around=lambda count=count: _with_threads(count),  # type: ignore[misc]
                # Threads that are too many are in each other's way in the optimizer, too.
                affected_s=self._times.computed_s if count < own else None,
            )

    def _model_alone(self) -> OperatorProbe:
        """The calls of the model that the loss makes, without the rest of it."""
        model, loss = self._session.model, self._session.experiment.loss
        assert loss is not None
        batch = self._place(self._batch) if self._place is not None else self._batch
        return self._passes(
            MODEL_ALONE,
            lambda: repeated_calls(
                model, partial(loss, model, batch), _forward_settings(self._session)
            ),
            note="of the model alone",
        )

    def _larger_batch(self) -> OperatorProbe:
        """The same batch several times over, as one: its time per sample."""
        ratio, problem, larger = None, None, self._size * _LARGER
        try:
            batch = repeated(self._batch, self._size, _LARGER)
            before = self._run(self._session.model)
            after = self._run(self._session.model, batch=batch)
            found = _ratio(before, after, self._session.device)
            ratio = _scaled(found, 1 / _LARGER)
        except Exception as error:  # noqa: BLE001 - a probe must not end a profile
            problem = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        return OperatorProbe(
            advice="small-batch",
            affected_s=self._times.passes_s,
            ratio=ratio,
            batch_size=larger,
            note=f"forward and backward of {counted_text(larger, 'sample')} at once",
            problem=problem,
        )

    def _optimizer(self) -> OperatorProbe:
        """The optimizer's step in its fused form, with gradients of zero."""
        optimizers, own = self._session.optimizers, self._recipe.optimizer_implementation.value
        changes = {"optimizer_implementation": "fused"}
        affected_s = self._times.phases_s.get("optimizer", 0.0)
        if not optimizers.can_be_fused or not self._session.facts.can_be_fused:
            return OperatorProbe(
                advice="unfused-optimizer",
                affected_s=affected_s,
                problem="torch has no fused kernel for this optimizer",
            )
        for weight in self._session.model.parameters():
            if weight.requires_grad:
                weight.grad = torch.zeros_like(weight)

        @contextlib.contextmanager
        def fused() -> Iterator[None]:
            optimizers.set_implementation("fused")
            try:
                yield
            finally:
                optimizers.set_implementation(own)

        ratio, problem = None, None
        try:
            before, after = _steps_of(optimizers), _steps_of(optimizers)
            ratio = _ratio(before, after, self._session.device, fused)
        except Exception as error:  # noqa: BLE001 - a probe must not end a profile
            problem = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        finally:
            for weight in self._session.model.parameters():
                weight.grad = None
        return OperatorProbe(
            advice="unfused-optimizer",
            affected_s=affected_s,
            ratio=ratio,
            changes=changes,
            note="the optimizer's step, fused",
            problem=problem,
        )


def _forward_settings(
    session: Session, precision_name: Precision | None = None, attention: Any = None
) -> Callable[[], AbstractContextManager[Any]]:
    """Those of the forward pass, as the recipe says where nothing else is given."""
    return precision.forward_settings(
        precision_name or session.recipe.precision.value,
        attention or session.recipe.attention.value,
        session.device,
    )


def _steps_of(optimizers: Optimizers) -> Callable[[], None]:
    """The steps of all optimizers, as updates make them."""
    steps = [FusedStep(optimizer) for optimizer in optimizers]

    def run() -> None:
        for step in steps:
            step()

    return run


def _has_bf16(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


@contextlib.contextmanager
def _with_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _scaled(interval: Interval, factor: float) -> Interval:
    return Interval(
        middle=interval.middle * factor, low=interval.low * factor, high=interval.high * factor
    )


def _ratio(
    before: Callable[[], None],
    after: Callable[[], None],
    device: torch.device,
    around: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext,
) -> Interval:
    """The time of the second to that of the first, in turns, for about a second.

    around: settings of the second one.
    """

    def seconds(run: Callable[[], None], count: int) -> float:
        # The first one under other settings is slower: it starts threads, or ends them.
        run()
        began_s = elapsed_s()
        for _ in range(count):
            run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return elapsed_s() - began_s

    def seconds_after(count: int) -> float:
        with around():
            return seconds(after, count)

    took_s = seconds(before, 1)
    count = max(1, round(_LEAST_BLOCK_S / max(took_s, 1e-6)))
    seconds_after(1)
    began_s = elapsed_s()
    pairs: list[tuple[float, float]] = []
    while len(pairs) < _LEAST_PAIRS or (
        len(pairs) < _MOST_PAIRS and elapsed_s() - began_s < _LIMIT_S
    ):
        pairs.append((seconds(before, count), seconds_after(count)))
    faster = speedup(pairs)
    return Interval(middle=1 / faster.middle, low=1 / faster.high, high=1 / faster.low)
