"""The loop of a sweep: starts trials as runs, follows them, and has their ends recorded."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec

from flatout import __version__
from flatout.errors import FlatoutError, UsageError
from flatout.runs import api as runs_api
from flatout.runs import experiment_source
from flatout.runs.experiment_params import parse_parameters
from flatout.runs.supervisor import Supervisor, conclude, follow
from flatout.runs.sweep import result
from flatout.runs.sweep.journal import SweepJournal
from flatout.runs.sweep.proposals import Proposals
from flatout.runs.sweep.space import grid, parse_space, settings_of
from flatout.schema.experiment_spec import SweepRun
from flatout.schema.finding import finding_from
from flatout.schema.placement import LOCAL, num_gpus_for
from flatout.schema.run import RunHeader
from flatout.schema.run_lines import Line, Progress, Started, Validated
from flatout.schema.sweep import (
    DEFAULT_TRIALS,
    Sweep,
    SweepHeader,
    SweepRequest,
    SweepTrial,
    TrialAsked,
    direction_of,
)
from flatout.schema.train_request import TrainRequest
from flatout.system import atomic_files, clock, paths, process_env
from flatout.system.signals import Interrupts
from flatout.system.store import run_folder, run_tail, sweep_folder
from flatout.system.store.run_folder import RunFolder, read_run
from flatout.system.store.sweep_folder import SweepFolder

# A worker that was killed is replaced so often in a row.
_MOST_RESTARTS = 3
# What the first trial shows to be wrong with the request: its run is of no use to the next sweep.
_USELESS = ("unknown-metric", "no-validation-data")
# For a worker whose command line was killed: it ends its step, and writes a checkpoint.
_STOP_LIMIT_S = 600.0


class BeginTraining(Protocol):
    """Creates a run, or resumes one, here or in a cluster."""

    def __call__(
        self, request: TrainRequest, interrupts: Interrupts, *, is_attached: bool
    ) -> Supervisor:
        """Starts a training; see `runs/api.py: begin`."""
        ...


def carry_out(
    request: SweepRequest, begin: BeginTraining, interrupts: Interrupts
) -> Iterator[Sweep]:
    """Starts or resumes a sweep; yields it whenever something has changed.

    Ctrl-C asks the running trials to stop; they are resumed with the sweep.

    Raises:
        UsageError: bad-sweep, bad-sweep-range, sweep-varies-nothing, sweep-exists, unknown-sweep,
            sweep-in-use, unknown-metric, no-validation-data, optuna-not-installed, and what
            starting a training says; RunFailed: sweep-trials-fail, sweep-damaged.
    """
    request.check()
    folder = sweep_folder.find_sweep(request.resume) if request.resume is not None else None
    header = _planned(request) if folder is None else _reopened(request, folder)
    gpus = gpu_shares(header.training, request.parallel)
    folder = folder or sweep_folder.create_sweep(header)
    lock = folder.lock()
    if not lock.acquire():
        raise UsageError(
            "sweep-in-use",
            f"sweep {header.id} is being carried out by another command.",
            fix=f"wait for it, or stop it with Ctrl-C; look at it: flatout sweep show {header.id}",
        )
    loop, is_refused = None, False
    try:
        journal = SweepJournal(folder, header, request.parallel)
        loop = _Loop(journal, gpus, begin, interrupts)
        yield from loop.run()
    except UsageError as error:
        is_new = request.resume is None and loop is not None and not loop.journal.ended()
        is_refused = is_new and (error.rule in _USELESS or not _runs(folder, header))
        raise
    finally:
        if loop is not None:
            loop.close()
        lock.release()
        if is_refused:
            # As after any start that was refused, nothing is left.
            for run in _runs(folder, header):
                run_folder.remove_run(run)
            sweep_folder.remove_sweep(folder)


def _planned(request: SweepRequest) -> SweepHeader:
    source = experiment_source.find_source(request.training.experiment)
    experiment_source.check_name(source)
    parameters = parse_parameters(source.text, source.place)
    fixed, space = parse_space(parameters, request.training.settings)
    num_trials = request.num_trials or DEFAULT_TRIALS
    if request.sampler == "grid":
        num_points = len(grid(space))
        num_trials = min(request.num_trials or num_points, num_points)
    name = request.name or run_folder.free_id(f"{source.name}-sweep", paths.sweeps_folder())
    training = msgspec.structs.replace(
        request.training, experiment=source.file or source.name, settings=fixed,
        python=_absolute(request.training.python),
    )  # fmt: skip
    metric, direction = request.metric, request.direction
    header = SweepHeader(
        id=run_folder.check_id(name),
        created_at=clock.now_s(),
        flatout_version=__version__,
        training=training,
        sha256=source.sha256,
        space=space,
        num_trials=num_trials,
        sampler=request.sampler,
        pruner=request.pruner,
        metric=metric,
        direction=direction if metric is None else direction_of(metric, direction),
    )
    run_folder.check_id(header.run_id(num_trials))
    # Where Optuna is missing, nothing is made.
    Proposals(header, ())
    return header


def _absolute(python: str | None) -> str | None:
    """A path that holds wherever the sweep is resumed; a name stays one."""
    is_name = python is None or Path(python).name == python
    return python if is_name else str(Path(python or "").expanduser().absolute())


def _reopened(request: SweepRequest, folder: SweepFolder) -> SweepHeader:
    header = sweep_folder.read_header(folder)
    source = experiment_source.find_source(header.training.experiment)
    if source.sha256 != header.sha256:
        raise UsageError(
            "experiment-changed",
            f"{header.training.experiment} has changed since the sweep started.",
            because="its trials are compared with each other, so they need the same code",
            fix="restore the file, or start a new sweep",
        )
    if request.num_trials is not None:
        num_trials = request.num_trials
        if header.sampler == "grid":
            num_trials = min(num_trials, len(grid(header.space)))
        header = msgspec.structs.replace(header, num_trials=num_trials)
    return header


def _runs(folder: SweepFolder, header: SweepHeader) -> list[RunFolder]:
    """The runs of a sweep that exist."""
    numbers = {line.trial for line in sweep_folder.read_trials(folder)}
    runs = {number: result.run_of(header, number) for number in sorted(numbers)}
    return [
        run for number, run in runs.items() if run.header.exists() and _is_own(run, header, number)
    ]


def _is_own(folder: RunFolder, header: SweepHeader, trial: int) -> bool:
    found = atomic_files.read_json(folder.header, RunHeader)
    return found.sweep == SweepRun(sweep=header.id, trial=trial)


def gpu_shares(training: TrainRequest, parallel: int) -> list[str | None]:
    """The GPUs that CUDA shows to each of the trials at a time; None shows all of them."""
    on, device = training.placement, training.fixed.get("device", "cuda")
    if parallel == 1 or device != "cuda" or (on is not None and on.launcher not in LOCAL):
        return [None] * parallel
    chosen = process_env.visible_gpus()
    num_gpus = num_gpus_for(runs_api.probe(sys.executable), chosen)
    names = [str(number) for number in range(num_gpus)] if chosen is None else chosen.split(",")
    return divided(names[:num_gpus], on.num_ranks if on is not None else 1, parallel)


def divided(gpus: Sequence[str], size: int, parallel: int) -> list[str | None]:
    """GPUs in groups of a size, one for each of the trials at a time; None if there is but one."""
    groups = [
        ",".join(gpus[start : start + size]) for start in range(0, len(gpus) - size + 1, size)
    ]
    return [groups[slot % len(groups)] if len(groups) > 1 else None for slot in range(parallel)]


@dataclass(kw_only=True)
class ActiveTrial:
    """A trial whose run is being trained.

    slot: which of the places for parallel trials it has. reports: the metric by step.
    is_over: its end is recorded, and its worker has been asked to stop.
    """

    asked: TrialAsked
    slot: int
    supervisor: Supervisor
    lines: Iterator[list[Line]]
    reports: dict[int, float | None]
    num_restarts: int = 0
    num_steps: int | None = None
    progress: Progress | None = None
    is_over: bool = False

    @property
    def number(self) -> int:
        """The number of the trial, from 1."""
        return self.asked.trial

    def row(self, header: SweepHeader) -> SweepTrial:
        """How it stands."""
        progress, num_steps = self.progress, self.num_steps
        return SweepTrial(
            trial=self.number,
            run=header.run_id(self.number),
            parameters=self.asked.parameters,
            status="running",
            value=result.best_value(header, self.reports.values()),
            duration_s=sum(progress.split_s.values()) if progress else None,
            share=min(1.0, progress.step / num_steps) if progress and num_steps else None,
        )


@dataclass
class _Loop:
    """Carries out what is left of a sweep.

    gpus: what CUDA shows to each of the trials at a time. error: what ends the sweep once the
    trials that run have stopped.
    """

    journal: SweepJournal
    gpus: list[str | None]
    begin: BeginTraining
    interrupts: Interrupts
    active: dict[int, ActiveTrial] = field(default_factory=dict)
    error: FlatoutError | None = None

    def run(self) -> Iterator[Sweep]:
        """Starts and follows trials until none is left."""
        self._stop_pruned()
        waiting = self.journal.numbers()
        while True:
            is_changed = False
            while len(self.active) < len(self.gpus) and not self._is_ending:
                number = next(waiting, None)
                if number is None:
                    break
                self._start(number)
                is_changed = True
            for trial in list(self.active.values()):
                lines = next(trial.lines, None)
                if lines is None:
                    self._finish(trial)
                else:
                    self._take(trial, lines)
                is_changed |= lines is None or bool(lines)
            if is_changed:
                yield self.journal.sweep()
            elif not self.active:
                break
        if self.error is not None:
            raise self.error
        final = self.journal.sweep(is_final=True)
        if final.best is None and not self.interrupts.count:
            raise result.nothing_finished(final)
        yield final

    def close(self) -> None:
        """Asks what still trains to stop."""
        for trial in self.active.values():
            trial.supervisor.folder.request_stop()
        self.journal.close()

    @property
    def _is_ending(self) -> bool:
        return self.error is not None or bool(self.interrupts.count)

    def _stop_pruned(self) -> None:
        """Where a command line was killed, its pruned trial may not have been asked to stop."""
        for line in self.journal.ended():
            folder = result.run_of(self.journal.header, line.trial)
            if line.status == "pruned" and folder.is_in_use():
                folder.request_stop()

    def _start(self, number: int) -> None:
        header = self.journal.header
        try:
            asked = self.journal.asked(number)
            if result.run_of(header, number).header.exists():
                self._take_up(asked)
                return
            training = msgspec.structs.replace(
                header.training,
                settings=(*header.training.settings, *settings_of(asked.parameters)),
                run_id=header.run_id(number),
                sweep=SweepRun(sweep=header.id, trial=number),
            )
            self._follow(asked, training, {})
        except KeyboardInterrupt:
            return  # It was counted, too, so that nothing else is started.
        except FlatoutError as error:
            self._give_up(error)

    def _take_up(self, asked: TrialAsked, num_restarts: int = 0) -> None:
        """Continues with the run of a trial that has begun before.

        Raises:
            UsageError: run-exists, run-in-use; KeyboardInterrupt: Ctrl-C was pressed.
        """
        journal, number = self.journal, asked.trial
        folder = result.run_of(journal.header, number)
        if not _is_own(folder, journal.header, number):
            raise UsageError(
                "run-exists",
                f"a run named `{folder.path.name}` already exists, and is not of this sweep.",
                fix="remove that run, or start a sweep with another --name",
            )
        if folder.is_in_use():
            # Its command line was killed. In a cluster it would train on without one.
            folder.request_stop()
            run_tail.wait_until_free(folder, _STOP_LIMIT_S, self.interrupts)
        run = read_run(folder)
        reports: dict[int, float | None] = {}
        if run.started is not None:
            journal.settle_metric(run.started.best)
        is_hopeless = False
        for line in run.validations:
            is_hopeless |= journal.report(number, reports, line)
        if is_hopeless:
            journal.record(result.end(journal.header, number, "pruned", run))
        elif run.status == "finished":
            journal.record(result.end(journal.header, number, "finished", run))
        elif run.status == "failed":
            journal.record(result.end(journal.header, number, "failed", run, run.failure))
        else:
            request = TrainRequest(resume=folder.path.name, on=journal.header.training.on)
            self._follow(asked, request, reports)
            self.active[number].num_restarts = num_restarts

    def _follow(
        self, asked: TrialAsked, request: TrainRequest, reports: dict[int, float | None]
    ) -> None:
        taken = {trial.slot for trial in self.active.values()}
        slot = next(slot for slot in range(len(self.gpus)) if slot not in taken)
        request = msgspec.structs.replace(request, gpus=self.gpus[slot])
        supervisor = self.begin(request, self.interrupts, is_attached=True)
        self.active[asked.trial] = ActiveTrial(
            asked=asked, slot=slot, supervisor=supervisor,
            lines=follow(supervisor, self.interrupts), reports=reports,
        )  # fmt: skip
        self.journal.show(self.active[asked.trial].row(self.journal.header))

    def _take(self, trial: ActiveTrial, lines: list[Line]) -> None:
        """Takes what the run of a trial has reported."""
        journal = self.journal
        if trial.is_over or self.error is not None:
            return
        try:
            for line in lines:
                if isinstance(line, Started):
                    trial.num_steps = line.num_steps
                    journal.settle_metric(line.best)
                elif isinstance(line, Progress):
                    trial.progress = line
                elif isinstance(line, Validated):
                    is_hopeless = journal.report(trial.number, trial.reports, line)
                    if is_hopeless and not trial.is_over:
                        # Recorded before it is stopped: whatever is killed now, it has ended.
                        run = read_run(trial.supervisor.folder)
                        journal.record(result.end(journal.header, trial.number, "pruned", run))
                        trial.is_over = True
                        trial.supervisor.folder.request_stop()
        except FlatoutError as error:
            self._give_up(error)
        if not trial.is_over:
            journal.show(trial.row(journal.header))

    def _finish(self, trial: ActiveTrial) -> None:
        """Records the end of a trial whose worker has ended."""
        journal, number = self.journal, trial.number
        del self.active[number]
        try:
            outcome = conclude(trial.supervisor)
            run, finding = outcome.run, outcome.finding
            if trial.is_over:
                return
            is_left = bool(self.interrupts.count) and run.status != "finished"
            if is_left or self.error is not None:
                row = trial.row(journal.header)
                journal.show(msgspec.structs.replace(row, status="interrupted"))
            elif run.status == "finished":
                journal.record(result.end(journal.header, number, "finished", run))
            elif finding is None:
                # By `flatout runs stop`, for example.
                journal.record(result.end(journal.header, number, "stopped", run))
            elif finding.rule == "worker-died" and trial.num_restarts < _MOST_RESTARTS:
                self._take_up(trial.asked, trial.num_restarts + 1)
            else:
                journal.record(result.end(journal.header, number, "failed", run, finding))
        except KeyboardInterrupt:
            return
        except FlatoutError as error:
            journal.record(result.end(journal.header, number, "failed", None, finding_from(error)))
        if (fault := result.all_fail(journal.header, journal.history)) is not None:
            self._give_up(fault)

    def _give_up(self, error: FlatoutError) -> None:
        self.error = self.error or error
        for trial in self.active.values():
            trial.supervisor.folder.request_stop()
