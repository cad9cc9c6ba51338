"""How the trials of a sweep stand, from its files and its runs."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable
from pathlib import Path

import msgspec

from flatout.errors import FlatoutError, RunFailed, UsageError
from flatout.runs.sweep.proposals import Proposals
from flatout.schema.suggested_command import (
    command_line,
    resume_sweep_command,
    show_command,
    train_command,
)
from flatout.schema.sweep import Sweep, SweepHeader, SweepTrial
from flatout.system import paths
from flatout.system.store import sweep_folder
from flatout.system.store.run_folder import RunFolder, read_run
from flatout.system.store.sweep_folder import SweepFolder

# So many trials that fail alike, before any has ended well, end the sweep.
_FAILING_ALIKE = 3


def read_sweep(text: str) -> Sweep:
    """A sweep as it stands, whether it is being carried out or not.

    Raises:
        UsageError: unknown-sweep, sweep-of-another-version; RunFailed: sweep-damaged.
    """
    sweep = sweep_in(sweep_folder.find_sweep(text))
    try:
        importances = importances_of(sweep)
    except UsageError:
        importances = {}  # Without Optuna, the rest can be shown all the same.
    return msgspec.structs.replace(sweep, importances=importances)


def sweep_in(folder: SweepFolder) -> Sweep:
    """The sweep of a folder as it stands, without the importances.

    Raises:
        UsageError: sweep-of-another-version; RunFailed: sweep-damaged.
    """
    header = sweep_folder.read_header(folder)
    return with_best(sweep_of(folder, header, trials_of(folder, header).values()), {})


def importances_of(sweep: Sweep) -> dict[str, float]:
    """How much each parameter matters; empty if too few trials have finished.

    Raises:
        UsageError: optuna-not-installed; RunFailed: sweep-damaged.
    """
    finished = [one for one in sweep.trials if one.status == "finished"]
    try:
        return Proposals(sweep.header, finished).importances()
    except ValueError as error:
        # A parameter outside its range.
        raise sweep_folder.damaged(SweepFolder(Path(sweep.folder)), str(error)) from error


def run_of(header: SweepHeader, trial: int) -> RunFolder:
    """The folder of a trial's run, which need not exist."""
    return RunFolder(paths.runs_folder() / header.run_id(trial))


def trials_of(folder: SweepFolder, header: SweepHeader) -> dict[int, SweepTrial]:
    """The trials by number; those that have not ended as their runs say.

    Raises:
        RunFailed: sweep-damaged.
    """
    trials = sweep_folder.read_trials(folder)
    return {
        number: one if one.has_ended else _with_run(one, header) for number, one in trials.items()
    }


def _with_run(one: SweepTrial, header: SweepHeader) -> SweepTrial:
    try:
        run = read_run(run_of(header, one.trial))
    except FlatoutError:
        return one
    values = [line.metrics.get(header.metric or "") for line in run.validations]
    status = "running" if run.status == "running" else "interrupted"
    return msgspec.structs.replace(one, status=status, value=best_value(header, values))


def sweep_of(folder: SweepFolder, header: SweepHeader, trials: Collection[SweepTrial]) -> Sweep:
    """A sweep, with the number of the first of its best trials."""
    known = [
        (header.cost(one.value), one.trial)
        for one in trials
        if one.status == "finished" and one.value is not None
    ]
    return Sweep(
        id=header.id, folder=str(folder.path), header=header, trials=tuple(trials),
        best=min(known)[1] if known else None,
    )  # fmt: skip


def with_best(sweep: Sweep, importances: dict[str, float]) -> Sweep:
    """A sweep with the command that trains its best trial again."""
    command = None
    if sweep.best is not None:
        try:
            run = read_run(run_of(sweep.header, sweep.best))
            change = run.change_for_another(sys.executable)
            command = train_command(run.header.spec, change, track=sweep.header.training.track)
        except FlatoutError:
            command = None  # Someone has removed the run.
    return msgspec.structs.replace(sweep, command=command, importances=importances)


def best_value(header: SweepHeader, values: Iterable[float | None]) -> float | None:
    """The best of the values of the metric; None if none is finite."""
    return min((value for value in values if value is not None), key=header.cost, default=None)


def refuse_equal_failures(header: SweepHeader, trials: Iterable[SweepTrial]) -> None:
    """Ends a sweep whose first trials have failed the same way.

    Raises:
        RunFailed: sweep-trials-fail.
    """
    ended = [one for one in trials if one.has_ended]
    rules = {one.finding.rule if one.finding else None for one in ended}
    last = ended[-1].finding if ended else None
    if len(ended) != _FAILING_ALIKE or len(rules) > 1 or last is None:
        return
    run = run_of(header, ended[-1].trial).path
    look = show_command(run.name) if run.exists() else f"flatout explain {last.rule}"
    resume = resume_sweep_command(header.id)
    raise RunFailed(
        "sweep-trials-fail",
        f"the first {_FAILING_ALIKE} trials of {header.id} failed the same way.",
        because=f"{last.problem} {last.because}" if last.because else last.problem,
        fix=f"look at one: {look}; to continue with the other trials: {resume}",
    )


def refuse_no_result(sweep: Sweep) -> None:
    """Ends a sweep without a best trial.

    Raises:
        RunFailed: sweep-trials-fail.
    """
    if sweep.best is not None:
        return
    findings = [one.finding for one in sweep.trials if one.finding is not None]
    raise RunFailed(
        "sweep-trials-fail",
        f"no trial of {sweep.id} has finished.",
        because=findings[-1].problem if findings else "all of them were stopped",
        fix="see why: " + command_line(["flatout", "sweep", "show", sweep.id]),
    )
