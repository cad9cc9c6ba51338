"""A learning-rate range test: steps of a fresh model at larger and larger rates."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from math import inf, isfinite
from typing import Any

from torch import Tensor

from flatout.engine.experiment import Experiment, require_experiment
from flatout.engine.feed.feed import MicroBatch
from flatout.engine.model.precision import check_repeatable
from flatout.engine.optim.optimizers import Optimizers
from flatout.engine.recipe.experiment_facts import restored_device
from flatout.engine.recipe.recipe_checks import check_recipe
from flatout.engine.runtime import rng
from flatout.engine.runtime.device import chosen_device, prepare_products
from flatout.engine.runtime.error_map import to_flatout_error
from flatout.engine.runtime.step_timer import StepTimer
from flatout.engine.session.session import Session, build, process_settings
from flatout.engine.session.step_kinds import new_step
from flatout.errors import UsageError
from flatout.schema.experiment_spec import ExperimentSpec
from flatout.schema.finding import Finding
from flatout.schema.lr_range import LrRange, LrSweep
from flatout.schema.recipe import check_field
from flatout.tune.lr_range import (
    check_sweep,
    has_diverged,
    newest_mean,
    points_of,
    rates,
    suggested_lr,
)

# Given the rate of a step that was made, and the share of the test that is over.
OnStep = Callable[[float, float], None]


def lr_range(
    experiment: Experiment,
    *,
    from_lr: float = 1e-7,
    to_lr: float = 10.0,
    steps: int = 100,
    use: dict[str, Any] | None = None,
    seed: int = 0,
) -> LrRange:
    """Tries learning rates from small to large, each for one step, in this process.

    Schedule, hooks, validation and averages of the weights are left out; see `flatout docs lr`.

    Args:
        experiment: what would be trained.
        from_lr: first rate, of the parameter group with the largest one; others keep their ratio.
        to_lr: last rate.
        steps: number of rates.
        use: recipe fields by name, with the values to fix.
        seed: of weights, order and augmentation.

    Returns:
        The losses, and a suggestion: `lr`, where the smoothed loss falls fastest.

    Raises:
        UsageError: bad-lr-range; what a training would be refused for.
        RunFailed: what the experiment raises in a step.
    """
    require_experiment(experiment, "lr_range")
    prepare_products()
    fixed = {field: check_field(field, value) for field, value in (use or {}).items()}
    spec = ExperimentSpec(name="notebook", seed=seed, fixed=fixed)
    sweep = LrSweep(from_lr=from_lr, to_lr=to_lr, num_steps=steps)
    try:
        return swept(experiment, spec, sweep)
    except (Exception, SystemExit) as error:
        known_error = to_flatout_error(error)
        if known_error is None or known_error is error:
            raise
        raise known_error from error


def swept(
    experiment: Experiment,
    spec: ExperimentSpec,
    sweep: LrSweep,
    on_step: OnStep = lambda lr, done: None,
) -> LrRange:
    """Builds an experiment and makes the test; on_step: notified of each step.

    Raises:
        UsageError: bad-lr-range; what a training would be refused for.
    """
    check_sweep(sweep)
    experiment = dataclasses.replace(
        experiment, validation_data=None, early_stop=None, schedule=None, hooks=None, ema=None
    )
    device_name = spec.fixed.get("device")
    with rng.untouched_generators(chosen_device(device_name)), restored_device():
        built = build(experiment, spec.seed, device_name)
        recipe = built.recipe(spec.fixed)
        built.optimizers.check_implementation(
            recipe.optimizer_implementation.value, can_be_fused=built.facts.can_be_fused
        )
        check_repeatable(recipe, built.device)
        warnings = check_recipe(recipe, built.facts)
        with process_settings(recipe):
            session = Session(built, recipe)
            try:
                return _swept(session, spec.name, sweep, on_step, warnings)
            finally:
                session.close()


def _swept(
    session: Session, name: str, sweep: LrSweep, on_step: OnStep, warnings: list[Finding]
) -> LrRange:
    groups = _Rates(session.optimizers)
    lrs, losses = rates(sweep), list[float]()
    step, updates = new_step(session, StepTimer(session.device)), _updates(session)
    best = inf
    diverged_at = None
    session.model.train()
    for number, lr in enumerate(lrs, 1):
        groups.put(lr)
        loss = step.run(next(updates))
        step.flush()
        session.position.step += 1
        losses.append(_number(loss))
        on_step(lr, number / len(lrs))
        mean = newest_mean(losses, sweep)
        best = min(best, mean)
        if not isfinite(losses[-1]) or has_diverged(mean, best):
            diverged_at = lr
            break
    points = points_of(lrs, [loss for loss in losses if isfinite(loss)], sweep)
    suggestion, reason = suggested_lr(points, sweep)
    return LrRange(
        name=name,
        device=str(session.device),
        sweep=sweep,
        points=tuple(points),
        lr=suggestion,
        reason=reason,
        diverged_at=diverged_at,
        own_lr=groups.largest,
        group_ratios=tuple(groups.ratios),
        warnings=tuple(warnings),
    )


class _Rates:
    """The learning rates of all parameter groups, moved together.

    largest: of the experiment's own. ratios: of all of them to it.

    Raises:
        UsageError: bad-lr-range.
    """

    def __init__(self, optimizers: Optimizers) -> None:
        self._groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        own = [_own_rate(group) for group in self._groups]
        self.largest = max(own)
        self.ratios = [rate / self.largest if self.largest else 1.0 for rate in own]

    def put(self, lr: float) -> None:
        """Gives the group with the largest rate this one, and the others theirs."""
        for group, ratio in zip(self._groups, self.ratios, strict=True):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(lr * ratio)
            else:
                group["lr"] = lr * ratio


def _own_rate(group: dict[str, Any]) -> float:
    rate = group.get("lr")
    if not isinstance(rate, int | float | Tensor):
        raise UsageError(
            "bad-lr-range",
            f"a parameter group of the optimizer has the learning rate {rate!r}.",
            because="the optimizer chooses its own rates",
            fix="use an optimizer with a learning rate; there is nothing to find for this one",
        )
    return float(rate)


def _updates(session: Session) -> Iterator[list[MicroBatch]]:
    """Batches of epoch after epoch.

    Raises:
        UsageError: no-data.
    """
    while True:
        is_empty = True
        for update in session.feed.updates(session.position.epoch, 0):
            is_empty = False
            yield update
        if is_empty:
            raise UsageError(
                "no-data",
                "the training data has no samples.",
                fix="check what `train_data()` returns",
            )
        session.position.epoch += 1


def _number(loss: Tensor | dict[str, Tensor]) -> float:
    """Of several losses by name the sum, as a run logs it."""
    return float(loss) if isinstance(loss, Tensor) else sum(map(float, loss.values()))
