"""Learning rates during training: the experiment's schedulers, stepped together."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer

from flatout.engine.experiment import Experiment
from flatout.engine.optim.optimizers import Optimizers
from flatout.engine.optim.schedule_rehearsal import (
    Groups,
    ScheduleCoverage,
    ScheduleRehearsal,
    built_schedulers,
    goes_by_metric,
    groups_of,
    outlook,
    put_groups,
    step_scheduler,
    takes_length,
)
from flatout.engine.runtime.user_code import kind_text
from flatout.errors import RunFailed, UsageError


class LrSchedulers:
    """The schedulers of an experiment: none, one, or several by name.

    are_per_step: they step after each update; else after each epoch, if there are any.
    total_steps: how often they step in the whole training; None if unknown.

    Args:
        experiment: says how they are built, and when they step.
        optimizers: whose rates they change.
        total_steps: see above.

    Raises:
        UsageError: bad-experiment.
    """

    def __init__(
        self, experiment: Experiment, optimizers: Optimizers, total_steps: int | None = None
    ) -> None:
        self._experiment = experiment
        self._optimizers = optimizers
        self.total_steps = total_steps
        # As the experiment sets them: a scheduler changes some as soon as it is built.
        self._begun_with = groups_of(optimizers)
        self._by_name, self._are_named = built_schedulers(experiment, optimizers.given, total_steps)
        for name, scheduler in self._by_name.items():
            if not hasattr(scheduler, "state_dict") or isinstance(scheduler, Optimizer):
                whose = f" for {name!r}" if self._are_named else ""
                raise UsageError(
                    "bad-experiment",
                    f"`schedule` returned {kind_text(scheduler)}{whose}.",
                    fix="return a learning-rate scheduler, or a dict of them by name; for a "
                    "constant rate, leave `schedule` out",
                )
        self.are_per_step = bool(self._by_name) and experiment.schedule_every == "step"
        has_no_metric = self.are_per_step or experiment.validation_data is None
        if has_no_metric and self.go_by_metric:
            raise UsageError(
                "bad-experiment",
                "ReduceLROnPlateau needs the metric `best` after each validated epoch.",
                because="there is no `validation_data`, or `schedule_every` is `step`",
                fix="add validation data and leave schedule_every at `epoch`",
            )
        for optimizer in optimizers:
            # Schedulers warn if they do not see the optimizer's own step, which is not always
            # called.
            optimizer._opt_called = True

    @property
    def go_by_metric(self) -> bool:
        """Whether one of them is judged by the metric `best`."""
        return any(map(goes_by_metric, self._by_name.values()))

    @property
    def know_length(self) -> bool:
        """Whether they are built for the length of the training."""
        return takes_length(self._experiment.schedule)

    def after_update(self) -> None:
        """An update was made; only to be called if they are per step."""
        for scheduler in self._by_name.values():
            step_scheduler(scheduler)

    def after_epoch(self, value: float | None) -> None:
        """An epoch has ended.

        Args:
            value: the metric `best` of the last validation; None if there was none.
        """
        if self.are_per_step:
            return
        for scheduler in self._by_name.values():
            if not goes_by_metric(scheduler):
                step_scheduler(scheduler)
            elif value is not None:
                step_scheduler(scheduler, value)

    def outlook(self, num_made: int) -> ScheduleCoverage | None:
        """The coverage of the steps to come; None if it cannot be predicted.

        Args:
            num_made: the steps they have made.
        """
        if not self._by_name or self.go_by_metric or self.total_steps is None:
            return None
        return outlook(self._rehearsal(), num_made, self.total_steps)

    def is_over(self) -> bool:
        """Whether a longer training would have no rate, or could not step them any more."""
        if not self._by_name or self.go_by_metric or self.know_length:
            return False
        rehearsal = self._rehearsal()
        states = {name: scheduler.state_dict() for name, scheduler in self._by_name.items()}
        rehearsal.go_on_from(groups_of(self._optimizers), states)
        if not rehearsal.has_rate():
            return True
        try:
            rehearsal.step()
        except RunFailed:
            return True
        return False

    def go_to(self, num_steps: int, states: Any) -> None:
        """Puts them where they are after so many steps from the beginning, as they are built now.

        Args:
            num_steps: how often they have been stepped.
            states: what others had saved; those that go by a metric take it where it is theirs.
        """
        rehearsal = self._rehearsal()
        for _ in range(num_steps if self._by_name else 0):
            rehearsal.step()
        groups = rehearsal.groups()
        for name, scheduler in self._by_name.items():
            if goes_by_metric(scheduler):
                saved = (states or {}).get(name) if self._are_named else states
                if saved is not None and saved.keys() == scheduler.state_dict().keys():
                    scheduler.load_state_dict(saved)
                    groups = _without_rates(groups)
            else:
                scheduler.load_state_dict(rehearsal.schedulers[name].state_dict())
        put_groups(self._optimizers, groups)

    def _rehearsal(self) -> ScheduleRehearsal:
        return ScheduleRehearsal(
            self._experiment, self._optimizers, self._begun_with, self.total_steps
        )

    def state_dict(self) -> Any:
        """Their states: by name if they have names; None if there are none."""
        states = {name: scheduler.state_dict() for name, scheduler in self._by_name.items()}
        return states if self._are_named else states.get("schedule")

    def load_state_dict(self, state: Any) -> None:
        """Takes states over.

        Raises:
            KeyError: the state is that of other schedulers.
        """
        if state is not None:
            for name, scheduler in self._by_name.items():
                scheduler.load_state_dict(state[name] if self._are_named else state)


def _without_rates(groups: Groups) -> Groups:
    """Without the rates, which a schedule by the metric has lowered as it went."""
    return [
        [{name: value for name, value in group.items() if name != "lr"} for group in settings]
        for settings in groups
    ]
