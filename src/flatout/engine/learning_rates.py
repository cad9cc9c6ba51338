"""How learning rates change while training: the experiment's schedulers, stepped together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from flatout.engine.experiment import Experiment
from flatout.engine.optimizers import Optimizers
from flatout.engine.person_code import kind_text
from flatout.errors import RunFailed, UsageError


class LearningRates:
    """The schedulers of an experiment: none, one, or several by name.

    are_per_step: they step after each update; else after each epoch, if there are any.

    Args:
        experiment: says how they are built, and when they step.
        optimizers: whose rates they change.

    Raises:
        UsageError: bad-experiment.
    """

    def __init__(self, experiment: Experiment, optimizers: Optimizers) -> None:
        made = experiment.schedule(optimizers.given) if experiment.schedule is not None else {}
        self._are_named = isinstance(made, Mapping)
        self._by_name: dict[str, Any] = dict(made) if self._are_named else {"schedule": made}
        for name, one in self._by_name.items():
            if not hasattr(one, "state_dict") or isinstance(one, Optimizer):
                whose = f" for {name!r}" if self._are_named else ""
                raise UsageError(
                    "bad-experiment",
                    f"`schedule` returned {kind_text(one)}{whose}.",
                    fix="return a learning-rate scheduler, or a dict of them by name; for a "
                    "constant rate, leave `schedule` out",
                )
        self.are_per_step = bool(self._by_name) and experiment.schedule_every == "step"
        has_no_metric = self.are_per_step or experiment.validation_data is None
        if has_no_metric and self.go_by_metric:
            raise UsageError(
                "bad-experiment",
                "ReduceLROnPlateau goes by the metric `best` after each validated epoch.",
                because="there is no `validation_data`, or `schedule_every` is `step`",
                fix="give validation data and leave schedule_every at `epoch`",
            )
        for optimizer in optimizers:
            # Schedulers warn if they do not see the optimizer's own step, which is not always
            # called.
            optimizer._opt_called = True

    @property
    def go_by_metric(self) -> bool:
        """Whether one of them is judged by the metric `best`."""
        return any(_goes_by_metric(one) for one in self._by_name.values())

    def after_update(self) -> None:
        """An update was made; only to be called if they are per step."""
        for one in self._by_name.values():
            _step(one)

    def after_epoch(self, value: float | None) -> None:
        """An epoch has ended.

        Args:
            value: the metric `best` of the last validation; None if there was none.
        """
        if self.are_per_step:
            return
        for one in self._by_name.values():
            if not _goes_by_metric(one):
                _step(one)
            elif value is not None:
                _step(one, value)

    def state_dict(self) -> Any:
        """Their states: by name if they have names; None if there are none."""
        states = {name: one.state_dict() for name, one in self._by_name.items()}
        return states if self._are_named else states.get("schedule")

    def load_state_dict(self, state: Any) -> None:
        """Takes states over.

        Raises:
            KeyError: the state is that of other schedulers.
        """
        if state is not None:
            for name, one in self._by_name.items():
                one.load_state_dict(state[name] if self._are_named else state)


def _goes_by_metric(scheduler: Any) -> bool:
    return isinstance(scheduler, ReduceLROnPlateau)


def _step(scheduler: Any, *value: float) -> None:
    """Steps a scheduler; torch's own say so when they were made for fewer steps."""
    try:
        scheduler.step(*value)
    except ValueError as error:
        raise RunFailed(
            "schedule-is-over",
            "the learning-rate schedule has come to its end before the training.",
            because=str(error),
            fix="make the schedule for as many steps or epochs as are trained",
        ) from error
