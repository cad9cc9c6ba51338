"""The length of a run, and whether its schedule has a learning rate for all of it."""

from __future__ import annotations

import msgspec

from flatout.engine.experiment import Experiment
from flatout.engine.optim.schedule_rehearsal import ScheduleCoverage
from flatout.engine.runlog.event_log import EventLog
from flatout.engine.runlog.history import History
from flatout.engine.session.session import Session
from flatout.engine.training.loop import LoopLimits
from flatout.errors import UsageError
from flatout.schema.change import Change
from flatout.schema.experiment_spec import ExperimentSpec
from flatout.schema.finding import Finding, Fix
from flatout.schema.suggested_command import (
    is_of_notebook,
    resume_command,
    resume_in_python,
    train_command,
)
from flatout.schema.units import counted_text

# Of the steps to come: with more of them without a rate, it is not trained.
_MOST_IDLE = 0.1
_HOW_TO = "`schedule=lambda optimizer, total_steps: ...`, see `flatout docs experiments`"
_FIX_OF_NEW = f"make the schedule as long as the training: {_HOW_TO}; or train for less time"


def limits_of(
    experiment: Experiment, spec: ExperimentSpec, history: History, change: Change
) -> LoopLimits:
    """The length of a run: as changed now, else as extended before, else as it was started, else of
    the experiment.
    """
    for source in (change, history, spec):
        if source.epochs is not None or source.steps is not None:
            return LoopLimits(epochs=source.epochs, steps=source.steps)
    return LoopLimits(epochs=experiment.epochs, steps=experiment.steps)


def run_is_finished(
    name: str, spec: ExperimentSpec, change: Change, limits: LoopLimits, epoch: int, step: int
) -> UsageError:
    """The error for a run that already has the requested length."""
    by_steps = limits.steps is not None
    done = counted_text(step, "step") if by_steps else counted_text(epoch, "epoch")
    longer = msgspec.structs.replace(
        change, epochs=None if by_steps else 2 * epoch, steps=2 * step if by_steps else None
    )
    command = resume_command(name, longer)
    if is_of_notebook(spec):
        command = resume_in_python(name, longer.epochs)
    return UsageError(
        "run-is-finished",
        f"run {name} is finished, after {done}.",
        fix=f"to train longer: {command}",
    )


def check_schedule(
    session: Session, event_log: EventLog, run: str, spec: ExperimentSpec, change: Change
) -> None:
    """Refuses to train without a learning rate; warns where the last steps have none.

    Args:
        session: what is trained, at the resumed position.
        event_log: where it is logged.
        run: the run's name.
        spec: what it was started with.
        change: what is changed now.

    Raises:
        UsageError: schedule-is-over.
    """
    rates, position = session.learning_rates, session.position
    num_made = position.step if rates.are_per_step else position.epoch
    outlook = rates.outlook(num_made)
    if outlook is None or outlook.num_idle <= 0:
        return
    unit = "update" if rates.are_per_step else "epoch"
    problem = _problem(outlook, unit)
    because = f"`schedule` has a learning rate for {outlook.num_live:,} {unit}s; the run has "
    because += f"{outlook.num_steps:,}"
    if outlook.because is not None:
        because += f" ({outlook.because})"
    is_refused = outlook.because is not None or outlook.num_idle >= _MOST_IDLE * outlook.num_to_come
    if is_refused:
        fix = _fix_of_longer(run, spec, change) if num_made else _FIX_OF_NEW
        raise UsageError("schedule-is-over", problem, because=because, fix=fix)
    if outlook.num_idle >= max(2, outlook.num_to_come // 100):
        event_log.warn(
            position.step,
            Finding(
                rule="schedule-is-over",
                severity="warning",
                problem=problem,
                because=because,
                fixes=(Fix(text=f"make it as long as the training: {_HOW_TO}"),),
            ),
        )


def _problem(outlook: ScheduleCoverage, unit: str) -> str:
    if outlook.because is not None:
        first_without = outlook.num_live + 1
        return (
            f"the learning-rate schedule ends before {unit} {first_without:,} of "
            f"{outlook.num_steps:,}."
        )
    if outlook.num_idle == outlook.num_to_come:
        which = f"all {outlook.num_idle:,} {unit}s to come"
        which = which if outlook.num_idle > 1 else f"the {unit} to come"
    else:
        which = f"the last {outlook.num_idle:,} of {outlook.num_to_come:,} {unit}s to come"
    return f"the learning rate is 0 for {which}: the weights would not change."


def _fix_of_longer(run: str, spec: ExperimentSpec, change: Change) -> str:
    resumed = resume_command(run, change, is_changed=True)
    new = train_command(spec, change)
    if spec.file is None or new is None:
        return f"start a new run of that length, with a schedule as long: {_HOW_TO}"
    return (
        f"start a new run with a schedule of that length ({_HOW_TO}): {new}; or continue with "
        "another schedule, such as `schedule=None` for a constant rate: change the file, then "
        f"{resumed}"
    )
