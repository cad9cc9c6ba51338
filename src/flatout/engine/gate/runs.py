"""Short runs of a step, plain or not, and what they leave to be compared."""

from __future__ import annotations

import contextlib
import itertools
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from flatout.engine.experiment import Experiment
from flatout.engine.feed.feed import MicroBatch
from flatout.engine.gate.fakes import Bag, remembered
from flatout.engine.gate.fixed_rng import FixedRng, NoFusedDropout
from flatout.engine.gate.reference import Gradients, halve, optimizer_states, set_rates
from flatout.engine.model.ema import WeightAverage
from flatout.engine.runtime import rng
from flatout.engine.runtime.step_timer import StepTimer
from flatout.engine.session.compiled import compilers
from flatout.engine.session.session import (
    Session,
    build,
    process_settings,
    restored_torch_settings,
)
from flatout.engine.session.step_kinds import shared_step
from flatout.engine.tensors.nested import tensors_in
from flatout.schema.recipe import Recipe

# A scaler begins so high that first steps overflow and are left out; nothing is wrong with that.
_CALM_SCALE = 1024.0
# What the learning rate is multiplied by after the first update, where no schedule changes it.
_RATE_CHANGE = 0.25


class Updating(Protocol):
    """Anything that makes updates."""

    def run(self, update: list[MicroBatch]) -> Tensor:
        """Makes one update; gives the batch's mean loss."""
        ...


def begin(experiment: Experiment, seed: int, device: str, recipe: Recipe) -> Session:
    """A session as training begins it."""
    return Session(build(experiment, seed, device), recipe)


def make_step(session: Session) -> Updating:
    """A step as training makes it."""
    return shared_step(session, StepTimer(session.device))


@dataclass(frozen=True, kw_only=True)
class Maker:
    """The functions that make sessions and steps: the engine's own, or those under test.

    begin: makes a session of an experiment, a seed, a device and a recipe.
    step: makes of a session what makes its updates.
    """

    begin: Callable[[Experiment, int, str, Recipe], Session] = begin
    step: Callable[[Session], Updating] = make_step


@dataclass(frozen=True, kw_only=True)
class GateCase:
    """One run of the gate: an experiment, a recipe, the functions that make it, and its draws."""

    experiment: Experiment
    recipe: Recipe
    seed: int
    device: str
    maker: Maker
    draws: FixedRng | None = None


@contextlib.contextmanager
def running(case: GateCase) -> Iterator[tuple[Session, Updating]]:
    """A session and its step, under the recipe's settings, generators as training begins."""
    with process_settings(case.recipe):
        session = case.maker.begin(case.experiment, case.seed, case.device, case.recipe)
        try:
            if session.scaler is not None:
                calm = session.scaler.state_dict() | {"scale": _CALM_SCALE}
                session.scaler.load_state_dict(calm)
            session.model.train()
            yield session, case.maker.step(session)
        finally:
            session.close()


def drawing(case: GateCase, device: torch.device) -> contextlib.ExitStack:
    """The context in which steps are made: draws that do not depend on format and layout."""
    stack = contextlib.ExitStack()
    rng.seed_generators(rng.mixed_seed(case.seed, "gate"))
    if case.draws is not None:
        if device.type == "cuda":
            stack.enter_context(NoFusedDropout())
        stack.enter_context(case.draws)
    return stack


def first_updates(session: Session, count: int, epoch: int = 0) -> list[list[MicroBatch]]:
    """An epoch's first updates. Fetched all together: workers must not inherit what follows."""
    return list(itertools.islice(session.feed.updates(epoch, 0), count))


def run_gradients(case: GateCase, count: int) -> Gradients:
    """The sums of the gradients that a remembering optimizer was given by some updates.

    The weights are halved after each, so that a step that computes with stale weights is detected.
    """
    with running(case) as (session, step):
        updates = first_updates(session, count)
        with drawing(case, session.device):
            for update in updates:
                step.run(update)
                halve(session.model)
        return remembered(session.optimizers.only)


def run_repeatedly(case: GateCase) -> list[Gradients]:
    """Gradients of the same batch: twice in a row, and from where the generators began."""
    gradients: list[Gradients] = []
    before: Gradients = []
    with running(case) as (session, step):
        update = first_updates(session, 1)[0]
        with drawing(case, session.device):
            states = rng.generator_states(session.device)
            for number in range(3):
                if number == 2:
                    rng.restore_generators(states, session.device)
                step.run(update)
                sums = remembered(session.optimizers.only)
                gradients.append(gradients_since(sums, before))
                before = sums
    return gradients


def gradients_since(sums: Gradients, before: Gradients) -> Gradients:
    """The gradients added since an earlier copy of the sums; before: that copy, empty for none."""
    return [
        gradient_sum if gradient_sum is None or earlier is None else gradient_sum - earlier
        for gradient_sum, earlier in zip(sums, before or [None] * len(sums), strict=True)
    ]


@dataclass(kw_only=True)
class BagRun:
    """The result of updates with made-up gradients: weights and states in fp64 on the CPU.

    num_compiled: updates that compiled code has made.
    """

    weights: list[Tensor]
    states: list[dict[str, Any]]
    num_compiled: int = 0


def run_bag(case: GateCase, rates: list[float]) -> BagRun:
    """One update of a bag for each learning rate; before them one that a loss scaler leaves out."""
    with running(case) as (session, step):
        updates = first_updates(session, len(rates))
        with drawing(case, session.device):
            if session.scaler is not None:
                _overflow(session, step, updates[0])
            for rate, update in zip(rates, updates, strict=True):
                set_rates(session.optimizers.only, rate)
                step.run(update)
        bag: Any = session.model
        assert isinstance(bag, Bag)
        weights = [member.detach().to("cpu", torch.float64) for member in bag.members]
        return BagRun(
            weights=weights,
            states=optimizer_states(session.optimizers.only, bag),
            num_compiled=sum(compiler.num_calls for compiler in compilers(session)),
        )


def _overflow(session: Session, step: Updating, update: list[MicroBatch]) -> None:
    """An update whose scaled gradients are infinite, as those of a training's first ones may be.

    Reading unwritten memory gives NaN here, rather than old content.
    """
    scaler = session.scaler
    assert scaler is not None
    calm = scaler.state_dict()
    scaler.load_state_dict(calm | {"scale": math.inf})
    with restored_torch_settings(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
        step.run(update)
    scaler.load_state_dict(calm)


@dataclass(kw_only=True)
class Curve:
    """The result of a few updates; ways: of each update, the distance that each parameter went.

    rates: of each update, the groups' learning rates. unmoved: share of the weights that are
    bit for bit where they began. buffers: after the first and after the last update.
    average_error: of a moving average, to one made in fp64.
    """

    losses: list[float] = field(default_factory=list)
    rates: list[list[float]] = field(default_factory=list)
    ways: list[list[float]] = field(default_factory=list)
    counts: list[float] = field(default_factory=list)
    buffers: list[dict[str, Tensor]] = field(default_factory=list)
    unmoved: float = 0.0
    average_error: float | None = None


def run_curve(case: GateCase, count: int) -> Curve:
    """Whole updates: accumulation, clipping, scaler, optimizer, average, schedule."""
    curve = Curve()
    with running(case) as (session, step):
        updates = first_updates(session, count)
        began = _weights(session.model)
        average = _ExactAverage(session)
        before = began
        with drawing(case, session.device):
            for number, update in enumerate(updates):
                curve.rates.append(_rates(session.optimizers.only))
                curve.losses.append(float(step.run(update)))
                weights = _weights(session.model)
                curve.ways.append([
                    float((new - old).norm())
                    for new, old in zip(weights, before, strict=True)
                ])  # fmt: skip
                average.update(weights)
                before = weights
                if number in (0, len(updates) - 1):
                    curve.buffers.append(_buffers(session.model))
                _change_rates(session, number)
        same = sum(int((new == old).sum()) for new, old in zip(before, began, strict=True))
        curve.unmoved = same / max(1, sum(weight.numel() for weight in began))
        curve.counts = _step_counts(session.optimizers.only)
        curve.average_error = average.error()
    return curve


def _weights(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters() if p.requires_grad]


def _buffers(model: nn.Module) -> dict[str, Tensor]:
    return {name: buffer.detach().to("cpu", copy=True) for name, buffer in model.named_buffers()}


def _rates(optimizer: torch.optim.Optimizer) -> list[float]:
    rates = [group.get("lr") for group in optimizer.param_groups]
    return [float(rate) for rate in rates if isinstance(rate, int | float | Tensor)]


def _change_rates(session: Session, number: int) -> None:
    """Changes rates after an update as the loop does; if the loop never does, changes them once."""
    if session.learning_rates.are_per_step:
        session.learning_rates.after_update()
    elif number == 0:
        for group in session.optimizers.only.param_groups:
            rate = group.get("lr")
            if isinstance(rate, Tensor):
                rate.mul_(_RATE_CHANGE)
            elif isinstance(rate, int | float):
                group["lr"] = rate * _RATE_CHANGE


def _step_counts(optimizer: torch.optim.Optimizer) -> list[float]:
    counts = [state.get("step") for state in optimizer.state.values() if isinstance(state, dict)]
    return sorted(float(count) for count in counts if isinstance(count, int | float | Tensor))


class _ExactAverage:
    """The moving average of the weights as they really were, in fp64."""

    def __init__(self, session: Session) -> None:
        self._average: WeightAverage | None = session.average
        self._decay = session.experiment.ema or 0.0
        # The average has frozen parameters, too; they never move.
        floating = [p for p in session.model.parameters() if p.is_floating_point()]
        self._trained_indices = [index for index, p in enumerate(floating) if p.requires_grad]
        has_average = self._average is not None
        self._began = [w.double() for w in _weights(session.model)] if has_average else []
        self._exact = list(self._began)

    def update(self, weights: list[Tensor]) -> None:
        if self._average is not None:
            self._exact = [
                torch.lerp(exact, weight.double(), 1 - self._decay)
                for exact, weight in zip(self._exact, weights, strict=True)
            ]

    def error(self) -> float | None:
        """Relative to how far the average has come."""
        if self._average is None:
            return None
        all_averages = self._average.state_dict()["averages"]
        averages = [all_averages[index].detach().double() for index in self._trained_indices]
        # An average that has hardly moved is rounded to fp32: a share of the weights keeps that
        # rounding from looking like a large error.
        way = _distance(self._exact, self._began) + 1e-5 * _distance(self._began, None)
        return _distance(averages, self._exact) / way if way > 0 else 0.0


def _distance(first: list[Tensor], second: list[Tensor] | None) -> float:
    pairs = zip(first, second if second is not None else [None] * len(first), strict=True)
    squares = [float((a if b is None else a - b).square().sum()) for a, b in pairs]
    return math.sqrt(sum(squares))


def read_epoch(session: Session, epoch: int) -> tuple[list[int], Tensor]:
    """Sizes of the updates, and what their numbered samples hold, in a row for each.

    A micro-batch that does not have as many rows as it reports gives the size -1.
    """
    sizes, rows = [], []
    for update in session.feed.updates(epoch, 0):
        size = 0
        for batch, num_reported in update:
            tensors = [tensor.detach().cpu() for tensor in tensors_in(batch)]
            size = -1 if len(tensors[0]) != num_reported or size < 0 else size + num_reported
            rows.append(torch.cat(tensors, dim=1))
        sizes.append(size)
    return sizes, torch.cat(rows) if rows else torch.zeros(0, 1)
