"""From a training request to a run with a worker: checks it and creates the run."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from flatout import __version__
from flatout.errors import FlatoutError, UsageError
from flatout.runs import experiment_source
from flatout.runs.experiment_params import check_values, parse_parameters, parse_settings
from flatout.schema.change import Change, ChangedFile, diff_of
from flatout.schema.experiment_spec import ExperimentSpec, SweepRun, UsedConfig
from flatout.schema.machine import Machine
from flatout.schema.run import Run, RunHeader
from flatout.schema.suggested_command import resume_command
from flatout.schema.tracking import TrackerTarget
from flatout.schema.train_request import TrainRequest
from flatout.schema.units import counted_text
from flatout.system import atomic_files, clock, paths
from flatout.system.signals import Interrupts
from flatout.system.store import run_folder, run_tail
from flatout.system.store.recipe_cache import fields_in, left_to_ranks
from flatout.system.store.run_folder import RunFolder
from flatout.system.tracker_process import num_event_bytes, requested_trackers, start_trackers

# How long a resume waits for a run that has been asked to stop.
STOP_LIMIT_S = 30.0


class PlannedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A planned training: a new run, or one to resume.

    run_id: name of a new run. sweep: of which it is a trial. change: what a resume changes.
    old, header: of the run to resume. trackers: where it is sent, perhaps with passwords.
    config: the configuration file of a new run.
    """

    spec: ExperimentSpec
    run_id: str | None = None
    trackers: tuple[TrackerTarget, ...] = ()
    config: UsedConfig | None = None
    sweep: SweepRun | None = None
    change: Change = Change()
    old: RunFolder | None = None
    header: RunHeader | None = None

    @property
    def device(self) -> str:
        """The device that the user requested; `auto` by default."""
        return self.spec.device(self.change)


def plan_run(request: TrainRequest, interrupts: Interrupts) -> PlannedRun:
    """The training that a request describes, before the machine is probed."""
    if request.resume is None:
        change = Change(on=request.on, python=request.python)
        spec = specify(request)
        is_run = not (spec.is_dry_run or spec.tuning.is_only)
        trackers = requested_trackers(request.track, None) if is_run else []
        return PlannedRun(
            spec=spec, run_id=request.run_id, trackers=tuple(trackers), config=request.config,
            sweep=request.sweep, change=change,
        )  # fmt: skip
    old = reopen(request, interrupts)
    header = atomic_files.read_json(old.header, RunHeader)
    change = request.change
    if request.is_changed:
        file = changed_file(old, header.spec)
        change = msgspec.structs.replace(change, file=file)
    trackers = requested_trackers(request.track, old)
    return PlannedRun(
        spec=header.spec, trackers=tuple(trackers), change=change, old=old, header=header
    )


def changed_file(folder: RunFolder, spec: ExperimentSpec) -> ChangedFile | None:
    """The text of a run's experiment file as it is now, checked against the run's parameters;
    None if it has not changed since the run started.

    Raises:
        UsageError: built-in-has-no-file, experiment-syntax-error, no-experiment-function,
            unknown-parameter, parameter-missing.
    """
    if spec.file is None:
        raise UsageError(
            "built-in-has-no-file",
            f"`--changed`: {spec.name} is a built-in experiment, not a file.",
            fix="leave out --changed",
        )
    source = experiment_source.find_source(spec.file)
    if source.sha256 == spec.sha256:
        return None
    check_values(parse_parameters(source.text, source.place), spec.parameters)
    before = folder.experiment_of(spec.sha256)
    diff = diff_of(experiment_source.copied_text(before), source.text, (str(before), spec.file))
    return ChangedFile(sha256=source.sha256 or "", diff=diff)


def specify(request: TrainRequest) -> ExperimentSpec:
    """A request for a new run as what crosses the border, checked against the experiment's text."""
    source = experiment_source.find_source(request.experiment)
    experiment_source.check_name(source)
    parameters = parse_parameters(source.text, source.place)
    of_file = fields_in(Path(request.recipe)) if request.recipe else {}
    on = request.placement
    left_out = () if on is None or on.num_ranks == 1 else left_to_ranks(of_file)
    of_file = {name: value for name, value in of_file.items() if name not in left_out}
    return ExperimentSpec(
        name=source.name,
        file=source.file,
        sha256=source.sha256,
        parameters=parse_settings(parameters, request.settings),
        seed=request.seed or 0,
        fixed=of_file | request.fixed,
        not_fixed=tuple(name for name in left_out if name not in request.fixed),
        epochs=request.epochs,
        steps=request.steps,
        is_dry_run=request.is_dry_run,
        init=experiment_source.find_weights(request.init) if request.init else None,
        tuning=request.tune_request,
        leave_free_bytes=request.leave_free_bytes,
    )


def reopen(request: TrainRequest, interrupts: Interrupts) -> RunFolder:
    """The run that a request resumes, once no other process trains in it.

    Raises:
        UsageError: unknown-run, run-from-elsewhere, run-in-use, run-is-finished,
            experiment-file-not-found, experiment-changed.
    """
    folder = run_folder.find_run(request.resume or "")
    run_folder.require_trust(folder, is_trusted=request.is_trusted)
    if folder.stop.exists():
        run_tail.wait_until_free(folder, STOP_LIMIT_S, interrupts)
    run_tail.refuse_if_taken(folder)
    run = run_folder.read_run(folder)
    refuse_if_long_enough(run, request)
    spec = run.header.spec
    experiment_source.require_source(spec.file, folder.experiment_of(spec.sha256))
    if not request.is_changed:
        experiment_source.refuse_changed(spec, folder, request.change)
    return folder


def refuse_if_long_enough(run: Run, request: TrainRequest) -> None:
    """Refuses to resume a run that is already as long as requested.

    Raises:
        UsageError: run-is-finished.
    """
    started, per_epoch = run.started, run.started.steps_per_epoch if run.started else None
    # What came after the last checkpoint is computed again.
    step = run.step if run.status == "finished" else run.checkpoint_step or 0
    num_epochs = step // per_epoch if per_epoch else None
    is_by_steps = started is not None and started.num_epochs is None
    if request.epochs is not None:
        if num_epochs is None or request.epochs > num_epochs:
            return
        done, option = counted_text(num_epochs, "epoch"), f"--epochs {request.epochs}"
    elif request.steps is not None:
        if request.steps > step:
            return
        done, option = counted_text(step, "step"), f"--steps {request.steps}"
    elif run.status == "finished":
        done, option = counted_text(step, "step"), None
        if num_epochs and not is_by_steps:
            done = counted_text(num_epochs, "epoch")
    else:
        return
    longer = msgspec.structs.replace(
        request.change,
        epochs=None if is_by_steps or not num_epochs else 2 * num_epochs,
        steps=2 * step if is_by_steps or not num_epochs else None,
    )
    raise UsageError(
        "run-is-finished",
        f"run {run.id} has already trained {done}"
        + (f"; `{option}` leaves nothing to train." if option else "."),
        fix=f"train it longer, such as: {resume_command(run.typed, longer)}",
    )


@contextlib.contextmanager
def run_for(plan: PlannedRun, machine: Machine, interrupts: Interrupts) -> Iterator[RunFolder]:
    """The run's folder, created if new, and claimed for training while the value is open.

    A new run for which no worker could be started is removed.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed before.
    """
    interrupts.give_way()
    folder = plan.old or create_run_folder(plan, machine)
    try:
        # Until the worker, which loads torch first, holds the run's lock. Where another command
        # line holds this already, the run is as safe.
        folder.attended.acquire()
        events_bytes = num_event_bytes(folder)
        yield folder
        start_trackers(folder, plan.trackers, events_bytes)
    except BaseException as error:
        folder.attended.release()
        if plan.spec.is_dry_run:
            discard_dry_run(folder)
        elif plan.old is None and isinstance(error, FlatoutError):
            run_folder.remove_run(folder)
        raise


def create_run_folder(plan: PlannedRun, machine: Machine) -> RunFolder:
    """Makes the folder of a new run, or of a search, with a copy of the experiment's file in it."""
    spec = plan.spec
    parent = paths.tunes_folder() if spec.tuning.is_only else paths.runs_folder()
    if spec.is_dry_run:
        # Removed by the caller; what a crash leaves is removed by the system.
        parent = Path(tempfile.mkdtemp(prefix="flatout-dry-run-"))
    try:
        return _prepare(plan, machine, parent)
    except BaseException:
        if spec.is_dry_run:
            shutil.rmtree(parent, ignore_errors=True)
        raise


def discard_dry_run(folder: RunFolder) -> None:
    """Removes what a dry run has needed."""
    shutil.rmtree(folder.path.parent, ignore_errors=True)


def _prepare(plan: PlannedRun, machine: Machine, parent: Path) -> RunFolder:
    spec, run_id = plan.spec, plan.run_id
    header = RunHeader(
        id=run_folder.check_id(run_id) if run_id else run_folder.free_id(spec.name, parent),
        created_at=clock.now_s(),
        flatout_version=__version__,
        python=machine.python or sys.executable,
        on=plan.change.on,
        config=plan.config,
        spec=spec,
        machine=machine,
        sweep=plan.sweep,
    )
    folder = run_folder.create_run(header, parent)
    try:
        if spec.file:
            experiment_source.copy_source(Path(spec.file), folder.experiment)
    except FlatoutError:
        run_folder.remove_run(folder)
        raise
    return folder
