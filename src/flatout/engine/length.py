"""How long a run is, and whether its schedule has a learning rate for all of it."""

from __future__ import annotations

import msgspec

from flatout.engine.experiment import Experiment
from flatout.engine.history import History
from flatout.engine.journal import Journal
from flatout.engine.loop import Limits
from flatout.engine.rehearsal import Outlook
from flatout.engine.session import Session
from flatout.errors import UsageError
from flatout.nouns.change import Change
from flatout.nouns.experiment_spec import ExperimentSpec
from flatout.nouns.finding import Finding, Fix
from flatout.nouns.typed import (
    is_of_notebook,
    resume_command,
    resume_in_python,
    train_command,
)  # fmt: skip
from flatout.nouns.units import counted_text

# Of the steps to come: with more of them without a rate, it is not trained.
_MOST_IDLE = 0.1
_HOW_TO = "`schedule=lambda optimizer, total_steps: ...`, see docs/experiments.md"
_FIX_OF_NEW = f"make the schedule as long as the training: {_HOW_TO}; or train for less time"


def limits_of(
    experiment: Experiment, spec: ExperimentSpec, history: History, change: Change
) -> Limits:
    """How long a run is: by what is changed now, by what it was extended to, by what it was begun
    with, or by the experiment.
    """
    for one in (change, history, spec):
        if one.epochs is not None or one.steps is not None:
            return Limits(epochs=one.epochs, steps=one.steps)
    return Limits(epochs=experiment.epochs, steps=experiment.steps)


def run_is_finished(
    name: str, spec: ExperimentSpec, change: Change, limits: Limits, epoch: int, step: int
) -> UsageError:
    """That a run has come to its end already, by the length that is asked for."""
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
        f"the run {name} has come to its end, after {done}.",
        fix=f"train it longer, such as: {command}",
    )


def check_schedule(
    session: Session, journal: Journal, run: str, spec: ExperimentSpec, change: Change
) -> None:
    """Refuses to train without a learning rate; says where the last steps have none.

    Args:
        session: what is trained, where it goes on.
        journal: where it is told.
        run: the run's name.
        spec: what it was begun with.
        change: what is changed now.

    Raises:
        UsageError: schedule-is-over.
    """
    rates, position = session.learning_rates, session.position
    num_made = position.step if rates.are_per_step else position.epoch
    found = rates.outlook(num_made)
    if found is None or found.num_idle <= 0:
        return
    unit = "update" if rates.are_per_step else "epoch"
    problem = _problem(found, unit)
    because = f"`schedule` has a learning rate for {found.num_live:,} {unit}s; the run has "
    because += f"{found.num_steps:,}"
    if found.because is not None:
        because += f" ({found.because})"
    is_refused = found.because is not None or found.num_idle >= _MOST_IDLE * found.num_to_come
    if is_refused:
        fix = _fix_of_longer(run, spec, change) if num_made else _FIX_OF_NEW
        raise UsageError("schedule-is-over", problem, because=because, fix=fix)
    if found.num_idle >= max(2, found.num_to_come // 100):
        journal.warn(
            position.step,
            Finding(
                rule="schedule-is-over",
                severity="warning",
                problem=problem,
                because=because,
                fixes=(Fix(text=f"make it as long as the training: {_HOW_TO}"),),
            ),
        )


def _problem(found: Outlook, unit: str) -> str:
    if found.because is not None:
        place = found.num_live + 1
        return f"the learning-rate schedule ends before {unit} {place:,} of {found.num_steps:,}."
    if found.num_idle == found.num_to_come:
        which = f"all {found.num_idle:,} {unit}s to come"
        which = which if found.num_idle > 1 else f"the {unit} to come"
    else:
        which = f"the last {found.num_idle:,} of {found.num_to_come:,} {unit}s to come"
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
