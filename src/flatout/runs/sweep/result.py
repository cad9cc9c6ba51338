"""How the trials of a sweep stand, and how each has ended: from its files and its runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from flatout.errors import FlatoutError, RunFailed, UsageError
from flatout.runs.sweep.proposals import Proposals
from flatout.schema.finding import Finding
from flatout.schema.run import Run
from flatout.schema.suggested_command import command_line, show_command, train_command
from flatout.schema.sweep import (
    Sweep,
    SweepHeader,
    SweepTrial,
    TrialAsked,
    TrialEnded,
    TrialLine,
    best_of,
)
from flatout.system import clock, paths
from flatout.system.store import sweep_folder
from flatout.system.store.run_folder import RunFolder, read_run
from flatout.system.store.run_reader import split_of
from flatout.system.store.sweep_folder import SweepFolder

EndStatus = Literal["finished", "pruned", "stopped", "failed"]
# So many trials that fail alike, before any has ended well, end the sweep.
_FAILING_ALIKE = 3


def read_sweep(text: str) -> Sweep:
    """A sweep as it stands, whether it is being carried out or not.

    Raises:
        UsageError: unknown-sweep, sweep-of-another-version; RunFailed: sweep-damaged.
    """
    folder = sweep_folder.find_sweep(text)
    header, history = sweep_folder.read_header(folder), sweep_folder.read_trials(folder)
    try:
        importances = Proposals(header, history).importances()
    except UsageError:
        importances = {}  # Without Optuna, the rest can be shown all the same.
    return with_best(sweep_of(folder, header, rows_of(header, history)), importances)


def run_of(header: SweepHeader, trial: int) -> RunFolder:
    """The folder of a trial's run, which need not exist."""
    return RunFolder(paths.runs_folder() / header.run_id(trial))


def rows_of(header: SweepHeader, history: Sequence[TrialLine]) -> list[SweepTrial]:
    """How each trial stands."""
    ended = {line.trial: line for line in history if isinstance(line, TrialEnded)}
    asked = [line for line in history if isinstance(line, TrialAsked)]
    return [
        row_of(header, line, ended[line.trial]) if line.trial in ended else _open(header, line)
        for line in asked
    ]


def row_of(header: SweepHeader, asked: TrialAsked, ended: TrialEnded) -> SweepTrial:
    """A trial that has ended."""
    return SweepTrial(
        trial=asked.trial, run=header.run_id(asked.trial), parameters=asked.parameters,
        status=ended.status, value=ended.value, duration_s=ended.duration_s, finding=ended.finding,
    )  # fmt: skip


def _open(header: SweepHeader, asked: TrialAsked) -> SweepTrial:
    """A trial that has not ended: what its run says, if there is one."""
    row = SweepTrial(
        trial=asked.trial, run=header.run_id(asked.trial), parameters=asked.parameters,
        status="interrupted",
    )  # fmt: skip
    try:
        run = read_run(run_of(header, asked.trial))
    except FlatoutError:
        return row
    values = [line.metrics.get(header.metric or "") for line in run.validations]
    return msgspec.structs.replace(
        row,
        status="running" if run.status == "running" else "interrupted",
        value=best_value(header, values),
    )


def sweep_of(folder: SweepFolder, header: SweepHeader, rows: Iterable[SweepTrial]) -> Sweep:
    """A sweep, with the number of its best trial."""
    trials = tuple(sorted(rows, key=lambda row: row.trial))
    return Sweep(
        id=header.id, folder=str(folder.path), header=header, trials=trials,
        best=best_of(header, trials),
    )  # fmt: skip


def with_best(sweep: Sweep, importances: dict[str, float]) -> Sweep:
    """A sweep with the command that trains its best trial again."""
    command = None
    if sweep.best is not None:
        try:
            run = read_run(run_of(sweep.header, sweep.best))
            command = train_command(run.header.spec, run.last_change)
        except FlatoutError:
            command = None  # Someone has removed the run.
    return msgspec.structs.replace(sweep, command=command, importances=importances)


def best_value(header: SweepHeader, values: Iterable[float | None]) -> float | None:
    """The best of the values of the metric; None if none is finite."""
    best: float | None = None
    for value in values:
        if value is not None and header.better(value, best):
            best = value
    return best


def end(
    header: SweepHeader,
    trial: int,
    status: EndStatus,
    run: Run | None,
    finding: Finding | None = None,
) -> TrialEnded:
    """The end of a trial, with what its run has reported."""
    lines = run.validations if run is not None else ()
    values = [line.metrics.get(header.metric or "") for line in lines]
    value = best_value(header, values)
    if status == "finished" and value is None:
        status = "failed"
        finding = Finding(
            rule="nonfinite-loss", severity="error", problem=f"`{header.metric}` was never finite."
        )
    return TrialEnded(
        at=clock.now_s(),
        trial=trial,
        status=status,
        value=value,
        reports=dict(enumerate(values, 1)),
        finding=finding,
        duration_s=sum(split_of(run).values()) or None if run is not None else None,
    )


def all_fail(header: SweepHeader, history: Sequence[TrialLine]) -> RunFailed | None:
    """The error that ends a sweep whose first trials have failed alike."""
    ended = [line for line in history if isinstance(line, TrialEnded)]
    rules = {line.finding.rule if line.finding else None for line in ended}
    last = ended[-1].finding if ended else None
    if len(ended) != _FAILING_ALIKE or len(rules) > 1 or last is None:
        return None
    if ended[0].status != "failed":
        return None
    run = run_of(header, ended[-1].trial).path
    look = show_command(run.name) if Path(run).exists() else f"flatout explain {last.rule}"
    resume = command_line(["flatout", "sweep", "--resume", header.id])
    return RunFailed(
        "sweep-trials-fail",
        f"the first {_FAILING_ALIKE} trials of {header.id} failed the same way.",
        because=f"{last.problem} {last.because}" if last.because else last.problem,
        fix=f"look at one: {look}; to continue with the other trials: {resume}",
    )


def nothing_finished(sweep: Sweep) -> RunFailed:
    """The error of a sweep at whose end there is no best trial."""
    findings = [one.finding for one in sweep.trials if one.finding is not None]
    return RunFailed(
        "sweep-trials-fail",
        f"no trial of {sweep.id} has finished.",
        because=findings[-1].problem if findings else "all of them were stopped",
        fix="see why: " + command_line(["flatout", "sweep", "show", sweep.id]),
    )
