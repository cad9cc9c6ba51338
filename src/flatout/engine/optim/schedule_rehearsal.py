"""Rehearses a schedule on dummy optimizers, to find out what it will do.

A schedule can only be built and stepped. So to find out whether it has a rate for the remaining
steps, they are made without a model.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from flatout.engine.experiment import Experiment
from flatout.engine.optim.optimizers import Optimizers
from flatout.errors import RunFailed, UsageError

Groups = list[list[dict[str, Any]]]

# A rate below this share of the largest changes no weight of fp32.
_NO_RATE = 1e-12
# More steps of a schedule than these are not looked at: they take a second.
_MOST_STEPS = 100_000
# What the recipe says of a group, not the experiment.
OF_THE_RECIPE = ("params", "foreach", "fused", "capturable", "differentiable")


def takes_length(schedule: Callable[..., Any] | None) -> bool:
    """Whether a schedule's factory wants to be given `total_steps`.

    Not where it has a value for it already: by a default, or bound by `functools.partial`.
    """
    if schedule is None:
        return False
    if isinstance(schedule, partial) and "total_steps" in schedule.keywords:
        return False
    try:
        parameter = inspect.signature(schedule).parameters.get("total_steps")
    except (TypeError, ValueError):  # Some builtins have no signature.
        return False
    return parameter is not None and parameter.default in (inspect.Parameter.empty, None)


def built_schedulers(
    experiment: Experiment, given: Any, total_steps: int | None
) -> tuple[dict[str, Any], bool]:
    """The schedulers of an experiment, and whether it has named them.

    Args:
        experiment: says how they are built.
        given: its optimizer, or several by name.
        total_steps: how often they step in the whole training; None if unknown.

    Raises:
        UsageError: bad-experiment.
    """
    if experiment.schedule is None:
        return {}, False
    schedule: Callable[..., Any] = experiment.schedule
    if not takes_length(schedule):
        made = schedule(given)
    elif total_steps is None:
        raise UsageError(
            "bad-experiment",
            "`schedule` takes `total_steps`, but the length of the training is unknown.",
            because="the training data has no length, and the experiment gives `epochs`",
            fix="give `steps` instead of `epochs`, or data with a `__len__`",
        )
    else:
        made = schedule(given, total_steps=total_steps)
    if isinstance(made, Mapping):
        return dict(made), True
    return {"schedule": made}, False


def goes_by_metric(scheduler: Any) -> bool:
    """Whether a scheduler is judged by the metric `best`."""
    return isinstance(scheduler, ReduceLROnPlateau)


def step_scheduler(scheduler: Any, *value: float) -> None:
    """Steps a scheduler; torch's own say so when they were made for fewer steps.

    Raises:
        RunFailed: schedule-is-over.
    """
    try:
        scheduler.step(*value)
    except ValueError as error:
        raise RunFailed(
            "schedule-is-over",
            "the learning-rate schedule ended before the training.",
            because=str(error),
            fix="build the schedule for the number of steps or epochs in the training",
        ) from error


def groups_of(optimizers: Optimizers) -> Groups:
    """The settings of all optimizers' groups, without their parameters."""
    return [[_settings(group) for group in optimizer.param_groups] for optimizer in optimizers]


def put_groups(optimizers: Optimizers, groups: Groups) -> None:
    """Sets the groups to these values; what belongs to the recipe stays."""
    for optimizer, settings in zip(optimizers, groups, strict=True):
        for group, values in zip(optimizer.param_groups, settings, strict=True):
            for name, value in values.items():
                current = group.get(name)
                if isinstance(current, Tensor) and isinstance(value, int | float | Tensor):
                    # In place, because a CUDA graph reads this memory.
                    current.fill_(value)
                else:
                    group[name] = value


class ScheduleRehearsal:
    """Schedulers on stand-ins for the optimizers; nothing is trained.

    Args:
        experiment: says how they are built.
        optimizers: those that are stood in for; untouched.
        groups: what their groups are set to before there is a schedule.
        total_steps: how often the schedulers step in the whole training.
    """

    def __init__(
        self, experiment: Experiment, optimizers: Optimizers, groups: Groups,
        total_steps: int | None,
    ) -> None:  # fmt: skip
        pairs = zip(optimizers.by_name.items(), groups, strict=True)
        by_name = {name: _stand_in(optimizer, settings) for (name, optimizer), settings in pairs}
        self._optimizers = Optimizers(
            by_name if isinstance(optimizers.given, Mapping) else next(iter(by_name.values()))
        )
        self.schedulers, _ = built_schedulers(experiment, self._optimizers.given, total_steps)
        self._largest = self._rate()

    def step(self) -> None:
        """Steps all schedulers that do not wait for a metric.

        Raises:
            RunFailed: schedule-is-over.
        """
        for scheduler in self.schedulers.values():
            if not goes_by_metric(scheduler):
                step_scheduler(scheduler)
        self._largest = max(self._largest, self._rate())

    def has_rate(self) -> bool:
        """Whether any group is trained with a rate above 0."""
        return self._rate() > _NO_RATE * self._largest

    def groups(self) -> Groups:
        """The present settings of the groups."""
        return groups_of(self._optimizers)

    def go_on_from(self, groups: Groups, states: dict[str, Any]) -> None:
        """Takes the place of schedulers that were stepped already."""
        put_groups(self._optimizers, groups)
        for name, state in states.items():
            self.schedulers[name].load_state_dict(state)

    def _rate(self) -> float:
        rates = [group["lr"] for optimizer in self._optimizers for group in optimizer.param_groups]
        return max((abs(float(rate)) for rate in rates), default=0.0)


@dataclass(frozen=True, kw_only=True)
class ScheduleCoverage:
    """The part of a training that a schedule covers.

    Args:
        num_live: steps from the training's beginning that it has a rate for.
        num_steps: steps of the training.
        num_to_come: those that are not made yet.
        because: what it said when it could not be stepped any further, if it could not.
    """

    num_live: int
    num_steps: int
    num_to_come: int
    because: str | None = None

    @property
    def num_idle(self) -> int:
        """Steps to come without a rate."""
        return min(self.num_steps - self.num_live, self.num_to_come)


def outlook(rehearsal: ScheduleRehearsal, num_made: int, num_steps: int) -> ScheduleCoverage | None:
    """The part of the training that a schedule covers; None if it never has a rate.

    Args:
        rehearsal: the schedule at its very beginning; stepped by this.
        num_made: steps made so far.
        num_steps: those of the whole training.
    """
    looked_at = min(num_steps, _MOST_STEPS)
    num_live, because = 0, None
    for number in range(looked_at):
        if rehearsal.has_rate():
            num_live = number + 1
        if number + 1 == looked_at:
            break
        try:
            rehearsal.step()
        except RunFailed as error:
            num_live, because = number + 1, error.because
            break
    if num_live == 0:
        return None
    if num_live == looked_at:
        num_live = num_steps
    return ScheduleCoverage(
        num_live=num_live, num_steps=num_steps, num_to_come=num_steps - num_made, because=because
    )


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.detach().clone() if isinstance(value, Tensor) else value
        for name, value in group.items()
        if name not in OF_THE_RECIPE
    }


def _stand_in(optimizer: Optimizer, settings: list[dict[str, Any]]) -> Optimizer:
    """An optimizer of the same kind and weights, whose groups can be changed and nothing else."""
    stand_in: Optimizer = object.__new__(type(optimizer))
    # `step` is what a scheduler has put there, which belongs to the other one.
    attributes = {name: value for name, value in optimizer.__dict__.items() if name != "step"}
    stand_in.__dict__.update(attributes)
    stand_in.state = defaultdict(dict)
    stand_in.param_groups = [
        {
            **{name: group[name] for name in OF_THE_RECIPE if name in group},
            **{
                name: value.detach().clone() if isinstance(value, Tensor) else value
                for name, value in values.items()
            },
        }
        for group, values in zip(optimizer.param_groups, settings, strict=True)
    ]
    stand_in._opt_called = True  # type: ignore[attr-defined]
    return stand_in
