"""Whether updates that are launched as graphs are those that the same step makes without them.

Both begin alike, read the same batches in turn and draw from the same generators, while the
learning rates change after each update. They should end with the same bits.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from flatout.engine.feed.feed import MicroBatch
from flatout.engine.gate.fixtures import GateFixtures
from flatout.engine.gate.runs import GateCase, first_updates, running
from flatout.engine.runtime import rng
from flatout.engine.runtime.step_timer import StepTimer
from flatout.engine.session.session import Session
from flatout.engine.step.captured_step import NUM_WARM_UPS, CapturedStep
from flatout.engine.step.step import EagerStep
from flatout.engine.tensors.nested import tensors_in, with_tensors
from flatout.schema.recipe import Recipe
from flatout.schema.tuning import Check
from flatout.schema.units import counted_text
from flatout.tune.gate import BANDS, LARGEST_RATIO, within

# More in a launch repeat the same.
_MOST_PER_LAUNCH = 4
# Kernels of both ways may be others; of the band of one gradient, so much is allowed for them all.
_BANDS = 5.0
_GROWS_EVERY = 2
# Powers of two: rates that have 24 bits keep them.
_FACTORS = (0.5, 4.0, 0.25, 2.0)


@dataclass(kw_only=True)
class _RunResult:
    """The result of a run: losses, final weights and buffers, and the initial weights."""

    losses: list[float]
    began: list[Tensor]
    ended: list[Tensor]
    numbers: list[float]
    problem: str | None = None


def replays(fixtures: GateFixtures, candidate: Recipe) -> list[Check]:
    """The same updates in graphs and without them."""
    per_launch = min(candidate.steps_per_launch.value, _MOST_PER_LAUNCH)
    recipe = fixtures.small(candidate, capture="step", steps_per_launch=per_launch)
    # Two launches; what is left over then is launched one by one.
    count = NUM_WARM_UPS + 3 * per_launch - 1
    case = fixtures.case(fixtures.experiment, recipe, is_plain=False, draws="own")
    # A step without graphs, of the same optimizer: all of its numbers are on the device.
    eager = replace(case, maker=replace(case.maker, step=_eager_step))
    first, again = (_run(eager, count) for _ in range(2))
    replayed = _run(case, count)
    if replayed.problem is not None:
        return [Check(name="replays", is_passed=False, note=replayed.problem)]
    if replayed.numbers != first.numbers:
        note = "step counts of the optimizer or the loss scaler differ from those without a graph"
        return [Check(name="replays", is_passed=False, note=note)]
    noise = _difference(again, first)
    band = _BANDS * BANDS[recipe.precision.value].gradient
    allowed = max(band, LARGEST_RATIO * noise)
    measured = _difference(replayed, first)
    updates = counted_text(count, "update")
    note = f"relative difference after {updates}; between two runs without graphs: {noise:.1e}"
    is_passed = within(measured, allowed)
    return [
        Check(name="replays", is_passed=is_passed, measured=measured, allowed=allowed, note=note)
    ]


def _eager_step(session: Session) -> EagerStep:
    return EagerStep(session.step_parts(), StepTimer(session.device))


def _run(case: GateCase, count: int) -> _RunResult:
    with running(case) as (session, step):
        whole = [
            update
            for update in first_updates(session, count)
            if _size(update) == _batch_size(session)
        ]
        updates = [_copied(update) for update in itertools.islice(itertools.cycle(whole), count)]
        groups = session.optimizers.only.param_groups
        for group in groups:
            group["lr"] = float(torch.tensor(group["lr"], dtype=torch.float32))
        if session.scaler is not None:
            # A scale that changes now and then, as in a long run.
            session.scaler.set_growth_interval(_GROWS_EVERY)
        rng.seed_generators(rng.mixed_seed(case.seed, "gate"))
        began = [p.detach().clone() for p in session.model.parameters()]
        losses = []
        for update, factor in zip(updates, itertools.cycle(_FACTORS), strict=False):
            losses.append(step.run(update))
            for group in groups:
                group["lr"] *= factor
        problem = None
        if isinstance(step, CapturedStep):
            # Updates still queued for a launch of several would be missing from the result.
            step.flush()
            problem = step.problem
            if problem is None and step.num_replayed == 0:
                problem = "no update was replayed from a graph"
        return _RunResult(
            losses=[float(loss) for loss in losses],
            began=began,
            ended=_ends(session),
            numbers=_numbers(session),
            problem=problem,
        )


def _size(update: list[MicroBatch]) -> int:
    return sum(size for _, size in update)


def _batch_size(session: Session) -> int:
    return session.experiment.batch_size


def _copied(update: list[MicroBatch]) -> list[MicroBatch]:
    """Copies: kernels are chosen by addresses, and those of slices are others."""
    return [
        (with_tensors(batch, iter([tensor.clone() for tensor in tensors_in(batch)])), size)
        for batch, size in update
    ]


def _ends(session: Session) -> list[Tensor]:
    """Weights, and behind them floating-point buffers and averages."""
    ended: list[Tensor] = list(session.model.parameters())
    ended += [buffer for buffer in session.model.buffers() if buffer.is_floating_point()]
    if session.average is not None:
        ended += session.average.state_dict()["averages"]
    return [tensor.detach().to("cpu", torch.float64) for tensor in ended]


def _numbers(session: Session) -> list[float]:
    """Counts: of steps and batches, and what the scaler has counted."""
    counts = [b for b in session.model.buffers() if b.dim() == 0 and not b.is_floating_point()]
    states = session.optimizers.only.state.values()
    counts += [state["step"] for state in states if isinstance(state.get("step"), Tensor)]
    scaled = session.scaler.state_dict() if session.scaler is not None else {}
    return [float(count) for count in counts] + [float(scaled.get("scale", 0.0))]


def _difference(run: _RunResult, reference: _RunResult) -> float:
    """The larger of two: of the losses, and of where weights and buffers ended."""
    scale = max(map(abs, reference.losses)) or 1.0
    by_loss = max(abs(a - b) / scale for a, b in zip(run.losses, reference.losses, strict=True))
    began = [tensor.to("cpu", torch.float64) for tensor in reference.began]
    way = _distance(reference.ended[: len(began)], began)
    by_end = _distance(run.ended, reference.ended)
    by_end = by_end / way if way > 0 else (math.inf if by_end else 0.0)
    return max(by_loss, by_end) if math.isfinite(by_loss) and math.isfinite(by_end) else math.inf


def _distance(first: list[Tensor], second: list[Tensor]) -> float:
    return math.sqrt(sum(float((a - b).square().sum()) for a, b in zip(first, second, strict=True)))
