"""The loop of a sweep: starts trials as runs, follows them, and has their ends recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

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
from flatout.runs.sweep.space import grid, num_combinations, parse_space, settings_of
from flatout.schema.experiment_spec import SweepRun
from flatout.schema.finding import Finding, finding_from
from flatout.schema.placement import LOCAL, num_gpus_for
from flatout.schema.run import Run, RunHeader
from flatout.schema.run_lines import Line, Progress, Started, Validated
from flatout.schema.sweep import (
    DEFAULT_TRIALS,
    Sampler,
    Space,
    Sweep,
    SweepHeader,
    SweepRequest,
    default_tuning,
    direction_of,
)
from flatout.schema.train_request import TrainRequest
from flatout.system import atomic_files, clock, paths, process_env
from flatout.system.signals import Interrupts
from flatout.system.store import interpreters, run_folder, run_tail, sweep_folder
from flatout.system.store.run_folder import RunFolder, read_run, run_in_use
from flatout.system.store.sweep_folder import SweepFolder
from flatout.system.tracker_process import kept_trackers

# A worker that is lost is replaced so often.
_MOST_RESTARTS = 3
# It was killed; or one whose command line was killed, and which was still loading torch when the
# run was looked at, took the run first.
_LOST = ("worker-died", "run-in-use")
# What the first validation shows to be wrong with the request: no sweep can use the run.
_USELESS = ("unknown-metric", "no-validation-data")
# For a worker whose command line was killed: it ends its step, and writes a checkpoint.
_STOP_LIMIT_S = 600.0

# Creates a run, or resumes one, here or in a cluster, attached to this process.
BeginTraining = Callable[[TrainRequest, Interrupts], Supervisor]


def carry_out(
    request: SweepRequest, begin: BeginTraining, interrupts: Interrupts
) -> Iterator[Sweep]:
    """Starts or resumes a sweep; yields it whenever something has changed.

    Ctrl-C asks the running trials to stop; they are resumed with the sweep.

    Raises:
        UsageError: bad-sweep, bad-sweep-range, sweep-varies-nothing, sweep-exists, unknown-sweep,
            sweep-in-use, experiment-changed, unknown-metric, no-validation-data,
            optuna-not-installed, bad-tracker, and what starting a training says;
            RunFailed: sweep-trials-fail, sweep-damaged.
    """
    request.check()
    folder = sweep_folder.find_sweep(request.resume) if request.resume is not None else None
    header = _planned(request) if folder is None else _reopened(request, folder)
    gpus = gpu_shares(header.training, header.parallel)
    folder = folder or sweep_folder.new_sweep(header.id)
    journal = None
    try:
        with folder.locked():
            journal = SweepJournal(folder, header)
            yield from _Loop(journal, gpus, begin, interrupts).run()
    except UsageError as error:
        if request.resume is None and journal is not None:
            _remove_refused(folder, journal, error)
        raise


def _remove_refused(folder: SweepFolder, journal: SweepJournal, error: UsageError) -> None:
    """As after any start that was refused, nothing is left; what was trained is kept."""
    header = journal.header
    if any(one.has_ended for one in journal.trials.values()):
        return
    places = {number: result.run_of(header, number) for number in journal.trials}
    runs = [
        run
        for number, run in places.items()
        if run.header.exists() and _is_own(run, header, number)
    ]
    if runs and error.rule not in _USELESS:
        return
    for run in runs:
        run_folder.remove_run(run)
    sweep_folder.remove_sweep(folder)


def _planned(request: SweepRequest) -> SweepHeader:
    source = experiment_source.find_source(request.training.experiment)
    experiment_source.check_name(source)
    parameters = parse_parameters(source.text, source.place)
    fixed, space = parse_space(parameters, request.training.settings)
    sampler, num_trials = _search(request, space)
    name = request.name or run_folder.free_id(f"{source.name}-sweep", paths.sweeps_folder())
    python = request.training.python
    training = msgspec.structs.replace(
        request.training,
        experiment=source.file or source.name,
        settings=fixed,
        # Paths that hold wherever the sweep is resumed.
        python=interpreters.find_interpreter(python) if python is not None else None,
        track=kept_trackers(request.training.track),
    )
    metric, direction = request.metric, request.direction
    header = SweepHeader(
        id=run_folder.check_id(name),
        created_at=clock.now_s(),
        flatout_version=__version__,
        training=training,
        sha256=source.sha256,
        space=space,
        num_trials=num_trials,
        sampler=sampler,
        pruner=request.pruner,
        parallel=request.parallel or 1,
        metric=metric,
        direction=direction if metric is None else direction_of(metric, direction),
    )
    run_folder.check_id(header.run_id(num_trials))
    # Where Optuna is missing, nothing is made.
    Proposals(header, ())
    return header


def _search(request: SweepRequest, space: Space) -> tuple[Sampler, int]:
    """The sampler, and the number of trials; of a grid, at most one for each combination."""
    num_trials = request.num_trials or DEFAULT_TRIALS
    if request.sampler is None:
        # Another sampler would try some combinations twice, and others never.
        num_all = num_combinations(space)
        if num_all is not None and num_all <= num_trials:
            return "grid", num_all
        return "tpe", num_trials
    if request.sampler == "grid":
        num_all = len(grid(space))
        return "grid", min(request.num_trials or num_all, num_all)
    return request.sampler, num_trials


def _reopened(request: SweepRequest, folder: SweepFolder) -> SweepHeader:
    header = sweep_folder.read_header(folder)
    _refuse_changed(header)
    if request.num_trials is not None:
        num_trials = request.num_trials
        if header.sampler == "grid":
            num_trials = min(num_trials, len(grid(header.space)))
        header = msgspec.structs.replace(header, num_trials=num_trials)
    if request.parallel is not None:
        training = header.training
        if header.parallel == 1 and training.tune == "auto":
            tune = default_tuning(request.parallel)
            training = msgspec.structs.replace(training, tune=tune)
        header = msgspec.structs.replace(header, parallel=request.parallel, training=training)
    return header


def _refuse_changed(header: SweepHeader) -> None:
    if experiment_source.find_source(header.training.experiment).sha256 != header.sha256:
        raise UsageError(
            "experiment-changed",
            f"{header.training.experiment} has changed since the sweep started.",
            because="its trials are compared with each other, so they need the same code",
            fix="restore the file and resume the sweep, or start a new one",
        )


def _is_own(folder: RunFolder, header: SweepHeader, trial: int) -> bool:
    found = atomic_files.read_json(folder.header, RunHeader)
    return found.sweep == SweepRun(id=header.id, trial=trial)


def gpu_shares(training: TrainRequest, parallel: int) -> list[str | None]:
    """The GPUs that CUDA shows to each of the trials at a time; None shows all of them."""
    on, device = training.placement, training.fixed.get("device", "auto")
    is_local = on is None or on.launcher in LOCAL
    if parallel == 1 or device not in ("auto", "cuda") or not is_local:
        return [None] * parallel
    chosen = process_env.visible_gpus()
    # The torch here may be none, or one for CPUs.
    python = interpreters.resolve_interpreter(training.python, training.env)
    num_gpus = num_gpus_for(runs_api.probe(python), chosen)
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

    slot: which of the places for parallel trials it has. is_over: its end is recorded, and its
    worker has been asked to stop.
    """

    number: int
    slot: int
    supervisor: Supervisor
    lines: Iterator[list[Line]]
    num_restarts: int = 0
    num_steps: int | None = None
    progress: Progress | None = None
    is_over: bool = False

    @property
    def duration_s(self) -> float | None:
        """How long it has trained."""
        return sum(self.progress.split_s.values()) if self.progress else None

    @property
    def share(self) -> float | None:
        """The share of its training that is done."""
        if self.progress is None or not self.num_steps:
            return None
        return min(1.0, self.progress.step / self.num_steps)


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
        try:
            self._stop_pruned()
            waiting = self.journal.numbers()
            while True:
                is_changed = self._advance(waiting)
                if is_changed:
                    yield self.journal.sweep()
                elif not self.active:
                    break
            if self.error is not None:
                raise self.error
            final = self.journal.sweep(is_final=True)
            if not self.interrupts.count:
                result.refuse_no_result(final)
            yield final
        finally:
            self._stop_all()
            self.journal.close()

    def _advance(self, waiting: Iterator[int]) -> bool:
        """Starts the trials for which there is room, and takes what the others report."""
        is_changed = False
        try:
            while len(self.active) < len(self.gpus) and not self._is_ending:
                number = next(waiting, None)
                if number is None:
                    break
                is_changed = True
                self._start(number)
            for trial in list(self.active.values()):
                lines = next(trial.lines, None)
                is_changed |= lines is None or bool(lines)
                if lines is None:
                    self._finish(trial)
                elif lines and not trial.is_over and self.error is None:
                    self._take(trial, lines)
        except KeyboardInterrupt:
            return True  # It was counted, too, so that nothing else is started.
        except FlatoutError as error:
            self.error = self.error or error
            self._stop_all()
            return True
        return is_changed

    @property
    def _is_ending(self) -> bool:
        return self.error is not None or bool(self.interrupts.count)

    def _stop_all(self) -> None:
        for trial in self.active.values():
            trial.supervisor.folder.request_stop()

    def _stop_pruned(self) -> None:
        """Where a command line was killed, its pruned trial may not have been asked to stop."""
        for number, one in self.journal.trials.items():
            folder = result.run_of(self.journal.header, number)
            if one.status == "pruned" and folder.is_in_use():
                folder.request_stop()

    def _start(self, number: int, num_restarts: int = 0) -> None:
        """Starts the run of a trial, or continues with it where it exists.

        Raises:
            UsageError: experiment-changed, run-exists, and what starting a training says;
                KeyboardInterrupt: Ctrl-C was pressed.
        """
        header = self.journal.header
        parameters = self.journal.parameters(number)
        folder = result.run_of(header, number)
        if not folder.header.exists():
            # Someone may have edited it while other trials were trained.
            _refuse_changed(header)
            training = msgspec.structs.replace(
                header.training,
                settings=(*header.training.settings, *settings_of(parameters)),
                run_id=header.run_id(number),
                sweep=SweepRun(id=header.id, trial=number),
            )
            self._follow(number, training, num_restarts)
            return
        if not _is_own(folder, header, number):
            raise UsageError(
                "run-exists",
                f"a run named `{folder.path.name}` already exists, and is not of this sweep.",
                fix="remove that run, or start a sweep with another --name",
            )
        if folder.is_in_use():
            # Its command line was killed. In a cluster it would train on without one.
            folder.request_stop()
            if not run_tail.wait_until_free(folder, _STOP_LIMIT_S, self.interrupts):
                raise run_in_use(folder)
        if not self._ended_before(number, read_run(folder)):
            trial = SweepRun(id=header.id, trial=number)
            request = TrainRequest(resume=folder.path.name, on=header.training.on, sweep=trial)
            try:
                self._follow(number, request, num_restarts)
            except UsageError as error:
                # An orphan took the run after it was looked at; `_finish` does the same where our
                # worker notices.
                if error.rule not in _LOST or num_restarts >= _MOST_RESTARTS:
                    raise
                self._start(number, num_restarts + 1)

    def _ended_before(self, number: int, run: Run) -> bool:
        """Takes what a run has reported before; gives whether its trial has ended by that."""
        journal = self.journal
        if run.started is not None:
            journal.settle_metric(run.started.best)
        # Up to the first verdict: a trial that is stopped at once reports no more than that.
        if any(journal.report(number, line) for line in run.validations):
            journal.record(number, "pruned", run)
        elif run.status == "finished" or run.status == "failed":
            journal.record(number, run.status, run, run.failure)
        else:
            return False
        return True

    def _follow(self, number: int, request: TrainRequest, num_restarts: int) -> None:
        taken = {trial.slot for trial in self.active.values()}
        slot = next(slot for slot in range(len(self.gpus)) if slot not in taken)
        request = msgspec.structs.replace(request, gpus=self.gpus[slot])
        supervisor = self.begin(request, self.interrupts)
        self.active[number] = ActiveTrial(
            number=number, slot=slot, supervisor=supervisor,
            lines=follow(supervisor, self.interrupts), num_restarts=num_restarts,
        )  # fmt: skip
        self.journal.show(number, "running")

    def _take(self, trial: ActiveTrial, lines: list[Line]) -> None:
        """Takes what the run of a trial has reported."""
        journal, folder = self.journal, trial.supervisor.folder
        for line in lines:
            if isinstance(line, Started):
                trial.num_steps = line.num_steps
                journal.settle_metric(line.best)
            elif isinstance(line, Progress):
                trial.progress = line
            elif isinstance(line, Validated) and journal.report(trial.number, line):
                # Recorded before it is stopped: whatever is killed now, it has ended.
                journal.record(trial.number, "pruned", read_run(folder))
                trial.is_over = True
                folder.request_stop()
                return
        journal.show(trial.number, "running", trial.duration_s, trial.share)

    def _finish(self, trial: ActiveTrial) -> None:
        """Records the end of a trial whose worker has ended."""
        journal, number = self.journal, trial.number
        del self.active[number]
        run: Run | None = None
        finding: Finding | None
        try:
            outcome = conclude(trial.supervisor)
            run, finding = outcome.run, outcome.finding
        except FlatoutError as error:
            finding = finding_from(error)
        if trial.is_over:
            return
        is_finished = run is not None and run.status == "finished"
        if self.error is not None or (self.interrupts.count and not is_finished):
            journal.show(number, "interrupted", trial.duration_s)
        elif is_finished:
            journal.record(number, "finished", run)
        elif finding is None:
            # By `flatout runs stop`, for example.
            journal.record(number, "stopped", run)
        elif finding.rule in _LOST and trial.num_restarts < _MOST_RESTARTS:
            self._start(number, trial.num_restarts + 1)
        else:
            journal.record(number, "failed", run, finding)
