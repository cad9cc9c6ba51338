"""How the trials of a sweep stand, from its files and its runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from flatout.errors import FlatoutError, RunFailed, UsageError
from flatout.runs.sweep.proposals import Proposals
from flatout.schema.suggested_command import command_line, show_command, train_command
from flatout.schema.sweep import Sweep, SweepHeader, SweepTrial, TrialAsked, TrialEnded, TrialLine
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
    rows = [row_of(header, line) for line in history if isinstance(line, TrialAsked)]
    return [
        with_end(row, ended[row.trial]) if row.trial in ended else _with_run(row, header)
        for row in rows
    ]


def row_of(header: SweepHeader, asked: TrialAsked) -> SweepTrial:
    """A trial that was not started yet."""
    return SweepTrial(
        trial=asked.trial, run=header.run_id(asked.trial), parameters=asked.parameters,
        status="interrupted",
    )  # fmt: skip


def with_end(row: SweepTrial, ended: TrialEnded) -> SweepTrial:
    """A trial that has ended."""
    return msgspec.structs.replace(
        row, status=ended.status, value=ended.value, duration_s=ended.duration_s, share=None,
        finding=ended.finding,
    )  # fmt: skip


def _with_run(row: SweepTrial, header: SweepHeader) -> SweepTrial:
    """A trial that has not ended, with what its run says, if there is one."""
    try:
        run = read_run(run_of(header, row.trial))
    except FlatoutError:
        return row
    values = [line.metrics.get(header.metric or "") for line in run.validations]
    status = "running" if run.status == "running" else "interrupted"
    return msgspec.structs.replace(row, status=status, value=best_value(header, values))


def sweep_of(folder: SweepFolder, header: SweepHeader, rows: Sequence[SweepTrial]) -> Sweep:
    """A sweep, with the number of the first of its best trials."""
    best = min(
        ((header.cost(row.value), row.trial) for row in rows
         if row.status == "finished" and row.value is not None),
        default=None,
    )  # fmt: skip
    return Sweep(
        id=header.id, folder=str(folder.path), header=header, trials=tuple(rows),
        best=best[1] if best is not None else None,
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
    return min((value for value in values if value is not None), key=header.cost, default=None)


def refuse_equal_failures(header: SweepHeader, rows: Sequence[SweepTrial]) -> None:
    """Ends a sweep whose first trials have failed the same way.

    Raises:
        RunFailed: sweep-trials-fail.
    """
    ended = [row for row in rows if row.has_ended]
    rules = {row.finding.rule if row.finding else None for row in ended}
    last = ended[-1].finding if ended else None
    if len(ended) != _FAILING_ALIKE or len(rules) > 1 or last is None:
        return
    run = run_of(header, ended[-1].trial).path
    look = show_command(run.name) if run.exists() else f"flatout explain {last.rule}"
    resume = command_line(["flatout", "sweep", "--resume", header.id])
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
