"""The gate's checks of a candidate: what is run for each, and with what it is compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec
from torch import Tensor, nn

from flatout.engine.experiment import Experiment
from flatout.engine.feed.data_kind import data_kind
from flatout.engine.gate.comparison import (
    Epoch,
    accumulation_check,
    curve_checks,
    data_check,
    gradient_errors,
    known_gradients,
    masks_check,
    optimizer_checks,
    samples_check,
    smallest_norm,
)
from flatout.engine.gate.fakes import (
    Bag,
    bag_experiment,
    bag_mean,
    bag_sum,
    bare,
    numbered_experiment,
    remembering,
    weighted_rows,
)
from flatout.engine.gate.fixtures import DrawsKind, GateFixtures
from flatout.engine.gate.graph_replay import replays
from flatout.engine.gate.reference import Gradients, reference_gradients, reference_updates
from flatout.engine.gate.runs import (
    BagRun,
    Curve,
    GateCase,
    first_updates,
    read_epoch,
    run_bag,
    run_curve,
    run_gradients,
    run_repeatedly,
    running,
)
from flatout.engine.optim.optimizers import Optimizers
from flatout.engine.runtime import rng
from flatout.engine.tensors.nested import tensors_in
from flatout.schema.recipe import Precision, Recipe
from flatout.schema.tuning import Check
from flatout.tune.gate import CheckName, Errors, coarser, gradient_check

# Two whole batches, and the epoch's last one, which is smaller.
_NUM_GRADIENTS, _NUM_CURVE = 3, 3
# Learning rates of four updates: what freezes the first one, or its double, is seen.
_RATES = [0.01, 0.01, 0.003, 0.02]
# Of the moving average while a curve is made: errors show immediately.
_EMA = 0.5
# An eager fp32 step farther from fp64 than this was not compared with the same computation.
_TRUSTED = 1e-2


def gradients(fixtures: GateFixtures, candidate: Recipe) -> list[Check]:
    """At the same weights and draws, compared with fp64 and with the eager step's error."""
    is_split = fixtures.splits_otherwise(candidate)
    draws: DrawsKind = "expected" if is_split else "keyed"
    precision = candidate.precision.value
    reference, is_double = _reference(fixtures, draws)
    eager = _eager(fixtures, draws, precision)
    recipe = fixtures.small(candidate, clip_norm=None)
    case = fixtures.case(fixtures.remembering, recipe, is_plain=False, draws=draws)
    candidate_gradients = run_gradients(case, _NUM_GRADIENTS)
    names = [name for name, _ in fixtures.model.named_parameters()]
    if len(candidate_gradients) != len(names):
        note = (
            f"the model has {len(candidate_gradients)} parameter tensors, the plain model "
            f"{len(names)}"
        )
        return [Check(name="gradients", is_passed=False, note=note)]
    errors = gradient_errors(names, candidate_gradients, eager, reference)
    errors = msgspec.structs.replace(errors, is_double=is_double)
    if is_split and _has_norms(fixtures.model):
        return [gradient_check(errors, precision, "BatchNorm sees micro-batches")]
    return [gradient_check(errors, precision)]


def _has_norms(model: nn.Module) -> bool:
    norms = nn.modules.batchnorm._BatchNorm
    return any(isinstance(module, norms) for module in model.modules())


def _eager(fixtures: GateFixtures, draws: DrawsKind, precision: Precision) -> Gradients:
    recipe = fixtures.small(fixtures.plain, clip_norm=None, precision=precision)
    case = fixtures.case(fixtures.remembering, recipe, is_plain=True, draws=draws)
    key = ("eager", draws, precision)
    result: Gradients = fixtures.once(key, lambda: run_gradients(case, _NUM_GRADIENTS))
    return result


def _reference(fixtures: GateFixtures, draws: DrawsKind) -> tuple[Gradients, bool]:
    """Gradients in fp64, and whether they are: in fp32 where fp64 is not supported."""

    def make() -> tuple[Gradients, bool]:
        eager = _eager(fixtures, draws, "fp32")
        recipe = fixtures.small(fixtures.plain, clip_norm=None)
        case = fixtures.case(fixtures.remembering, recipe, is_plain=True, draws=draws)
        try:
            exact = _double_gradients(case)
        except (RuntimeError, TypeError, ValueError, NotImplementedError, AttributeError):
            return eager, False
        names = [""] * len(exact)
        # Code that requests a number format in its own way computes something else in fp64.
        is_trusted = gradient_errors(names, eager, eager, exact).error <= _TRUSTED
        return (exact, True) if is_trusted else (eager, False)

    result: tuple[Gradients, bool] = fixtures.once(("reference", draws), make)
    return result


def rounding_errors(fixtures: GateFixtures, precision: Precision) -> Errors:
    """The error of the plain step at a precision, by rounding alone."""
    eager = _eager(fixtures, "keyed", precision)
    reference, is_double = _reference(fixtures, "keyed")
    names = [name for name, _ in fixtures.model.named_parameters()]
    errors = gradient_errors(names, eager, eager, reference)
    return msgspec.structs.replace(errors, is_double=is_double)


def _double_gradients(case: GateCase) -> Gradients:
    with running(case) as (session, _):
        updates = first_updates(session, _NUM_GRADIENTS)
        rng.seed_generators(rng.mixed_seed(case.seed, "gate"))
        loss = case.experiment.loss
        assert case.draws is not None and loss is not None
        with case.draws:
            return reference_gradients(session.model, loss, updates, is_double=True)


def accumulation(fixtures: GateFixtures, candidate: Recipe) -> list[Check]:
    """Sums, counts, clipping and scaling, with gradients that are known beforehand."""
    bag, rows = _bag(fixtures), weighted_rows(2, fixtures.size)
    count = int(rows[-1, 0]) + 1
    updating = bag_experiment(fixtures.experiment, bag, count)
    experiment = replace(updating, optimizer=remembering, train_data=lambda: rows)
    checks = []
    for loss in (bag_mean, bag_sum):
        known = known_gradients(bag, rows, is_sum=loss is bag_sum)
        # Unclipped, too: clipping hides gradients that are too large by a factor.
        clips = [None, 0.5 * smallest_norm(known)]
        for clip_norm in clips if candidate.clip_norm.value is not None else clips[:1]:
            recipe = fixtures.small(candidate, clip_norm=clip_norm)
            case = fixtures.case(replace(experiment, loss=loss), recipe, is_plain=False)
            checks.append(accumulation_check(bag, known, run_gradients(case, count), clip_norm))
    return [max(checks, key=lambda check: (not check.is_passed, check.measured))]


def optimizer(fixtures: GateFixtures, candidate: Recipe) -> list[Check]:
    """Fed known gradients while the learning rate changes, compared with fp64."""
    bag = _bag(fixtures)
    experiment = bag_experiment(fixtures.experiment, bag, len(_RATES))

    def run(recipe: Recipe, *, is_plain: bool) -> BagRun:
        small = fixtures.small(recipe, clip_norm=None)
        # Nothing is drawn here, and under a mode for draws nothing would be compiled.
        return run_bag(fixtures.case(experiment, small, is_plain=is_plain, draws="own"), _RATES)

    plain: BagRun = fixtures.once("plain bag", lambda: run(fixtures.plain, is_plain=True))
    exact: BagRun = fixtures.once("fp64 bag", lambda: _exact_bag(bag, experiment, plain))
    candidate_run = run(candidate, is_plain=False)
    if candidate.compiled.value != "off" and not candidate_run.num_compiled:
        return [Check(name="optimizer", is_passed=False, note="the compiled code was not run")]
    return optimizer_checks(bag, candidate_run, plain, exact)


def _bag(fixtures: GateFixtures) -> Bag:
    bag: Bag = fixtures.once("bag", lambda: Bag(fixtures.model, len(_RATES)))
    return bag


def _exact_bag(bag: Bag, experiment: Experiment, plain: BagRun) -> BagRun:
    try:
        weights, states = reference_updates(
            bag, lambda members: Optimizers(experiment.optimizer(members)).only, _RATES
        )
    except (RuntimeError, TypeError, ValueError, NotImplementedError):
        # An optimizer that computes in fp32 alone is compared with itself.
        return plain
    return BagRun(weights=weights, states=states)


def curve(fixtures: GateFixtures, candidate: Recipe) -> list[Check]:
    """Whole updates from the same weights, compared with the plain step's."""
    draws: DrawsKind = "expected" if fixtures.splits_otherwise(candidate) else "keyed"
    experiment = averaging_soon(fixtures.experiment)

    def eager(precision: Precision) -> Curve:
        recipe = fixtures.small(fixtures.plain, precision=precision)
        case = fixtures.case(experiment, recipe, is_plain=True, draws=draws)
        result: Curve = fixtures.once(
            ("curve", draws, precision), lambda: run_curve(case, _NUM_CURVE)
        )
        return result

    precision = candidate.precision.value
    plain = eager(fixtures.plain.precision.value)
    case = fixtures.case(experiment, fixtures.small(candidate), is_plain=False, draws=draws)
    candidate_curve = run_curve(case, _NUM_CURVE)
    band = coarser(precision, fixtures.plain.precision.value)
    return curve_checks(candidate_curve, plain, band, lambda: eager(precision))


def averaging_soon(experiment: Experiment) -> Experiment:
    """The experiment with a moving average, if it has one, that moves in a few updates."""
    return experiment if experiment.ema is None else replace(experiment, ema=_EMA)


def masks(fixtures: GateFixtures, candidate: Recipe) -> list[Check]:
    """Dropout and the like: other draws in each step, the same ones from the same state."""

    def run(recipe: Recipe, *, is_plain: bool) -> list[Gradients]:
        small = fixtures.small(recipe, clip_norm=None)
        case = fixtures.case(fixtures.remembering, small, is_plain=is_plain, draws="own")
        return run_repeatedly(case)

    plain = fixtures.once("masks", lambda: run(fixtures.plain, is_plain=True))
    return [masks_check(run(candidate, is_plain=False), plain)]


def data(fixtures: GateFixtures, candidate: Recipe) -> list[Check]:
    """Each sample once, in the plain order, with the plain augmentation."""
    # Three whole batches and a partial one, which is an update like any other.
    count = 3 * fixtures.size + max(1, fixtures.size // 2)
    is_cached = candidate.data_path.value == "cached"
    # Only what draws nothing may be cached.
    numbered = numbered_experiment(
        fixtures.experiment, fixtures.data, count, is_drawing=not is_cached
    )
    # Read in the candidate's way: with its workers. The plain way needs none to be known.
    recipe = _small_batches(fixtures, candidate)
    in_process = fixtures.small(fixtures.plain)

    def read(experiment: Experiment, recipe: Recipe, *, is_plain: bool) -> list[Epoch]:
        with running(fixtures.case(experiment, recipe, is_plain=is_plain)) as (session, _):
            return [read_epoch(session, epoch) for epoch in (0, 1)]

    plain = fixtures.once(("order", is_cached), lambda: read(numbered, in_process, is_plain=True))
    checks = [data_check(read(numbered, recipe, is_plain=False), plain)]
    if not checks[0].is_passed or data_kind(fixtures.data) == "iterable":
        return checks
    # Its real samples may draw from a generator of their own.
    few = replace(bare(fixtures.experiment), optimizer=remembering, named_parameters=False)

    def read_samples(recipe: Recipe, *, is_plain: bool) -> list[Tensor]:
        with running(fixtures.case(few, recipe, is_plain=is_plain)) as (session, _):
            # What is in a cache comes out of it in the second epoch.
            return [
                tensor.clone()
                for epoch in range(2 if is_cached else 1)
                for update in first_updates(session, _NUM_CURVE, epoch)
                for batch, _ in update
                for tensor in tensors_in(batch)
            ]

    if fixtures.splits_otherwise(candidate):
        in_process = fixtures.small(candidate)
    twice = [read_samples(in_process, is_plain=True) for _ in range(2)]
    samples = read_samples(recipe, is_plain=False)
    checks.append(samples_check(samples, twice, candidate.loader_workers.value))
    return checks


def _small_batches(fixtures: GateFixtures, candidate: Recipe) -> Recipe:
    names = ("loader_workers", "loader_persistent", "data_path")
    return fixtures.small(candidate, **{name: getattr(candidate, name).value for name in names})


CHECKS: dict[CheckName, Callable[[GateFixtures, Recipe], list[Check]]] = {
    "accumulation": accumulation,
    "optimizer": optimizer,
    "gradients": gradients,
    "masks": masks,
    "curve": curve,
    "replays": replays,
    "data": data,
}
