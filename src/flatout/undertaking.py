"""A training that was asked for, until somebody trains: checked, and made a run."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from flatout import __version__
from flatout.errors import FlatoutError, UsageError
from flatout.experiment_text import check_values, parse_parameters, parse_settings
from flatout.nouns.change import Change, ChangedFile, diff_of
from flatout.nouns.experiment_spec import ExperimentSpec
from flatout.nouns.machine import Machine
from flatout.nouns.run import Run, RunHeader
from flatout.nouns.train_request import TrainRequest
from flatout.nouns.typed import resume_command
from flatout.nouns.units import counted_text
from flatout.system import clock, environments, folders, runs, sources, store, tail
from flatout.system.interrupts import Interrupts
from flatout.system.recipes import fields_in, left_to_ranks
from flatout.system.runs import RunFolder

# How long a resume waits for a run that has been asked to stop.
STOP_LIMIT_S = 30.0


class Undertaking(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be trained: a run that is yet to be made, or one that is gone on with.

    run_id: as a new run is to be called. change: what a resume changes. old, header: of the run
    that is gone on with.
    """

    spec: ExperimentSpec
    run_id: str | None = None
    change: Change = Change()
    old: RunFolder | None = None
    header: RunHeader | None = None

    @property
    def device(self) -> str:
        """On what the person wants it trained; `auto` where nobody has said it."""
        return self.spec.device(self.change)


def take_up(request: TrainRequest, interrupts: Interrupts) -> Undertaking:
    """What a request wants trained, before any machine is looked at."""
    if request.resume is None:
        change = Change(on=request.on, python=request.python)
        return Undertaking(spec=specify(request), run_id=request.run_id, change=change)
    old = reopen(request, interrupts)
    header = store.read_json(old.header, RunHeader)
    change = request.change
    if request.is_changed:
        file = changed_file(old, header.spec)
        change = msgspec.structs.replace(change, file=file)
    return Undertaking(spec=header.spec, change=change, old=old, header=header)


def changed_file(folder: RunFolder, spec: ExperimentSpec) -> ChangedFile | None:
    """The text of a run's experiment file as it is now, checked against the run's parameters;
    None where it is what the run was begun with.

    Raises:
        UsageError: built-in-has-no-file, experiment-syntax-error, no-experiment-function,
            unknown-parameter, parameter-missing.
    """
    if spec.file is None:
        raise UsageError(
            "built-in-has-no-file",
            f"`--changed`: {spec.name} is not a file of yours.",
            fix="leave out --changed",
        )
    source = sources.find_source(spec.file)
    if source.sha256 == spec.sha256:
        return None
    check_values(parse_parameters(source.text, source.place), spec.parameters)
    before = folder.experiment_of(spec.sha256)
    diff = diff_of(sources.kept_text(before), source.text, (str(before), spec.file))
    return ChangedFile(sha256=source.sha256 or "", diff=diff)


def specify(request: TrainRequest) -> ExperimentSpec:
    """A request for a new run as what crosses the border, checked against the experiment's text."""
    source = sources.find_source(request.experiment)
    sources.check_name(source)
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
        init=sources.find_weights(request.init) if request.init else None,
        tuning=request.wish,
        leave_free_bytes=request.leave_free_bytes,
    )


def reopen(request: TrainRequest, interrupts: Interrupts) -> RunFolder:
    """The run that a request goes on with, once nobody else trains in it.

    Raises:
        UsageError: unknown-run, run-from-elsewhere, run-in-use, run-is-finished,
            experiment-file-not-found, experiment-changed.
    """
    folder = runs.find_run(request.resume or "")
    runs.require_trust(folder, is_trusted=request.is_trusted)
    if folder.stop.exists():
        tail.wait_until_free(folder, STOP_LIMIT_S, interrupts)
    tail.refuse_if_taken(folder)
    run = runs.read_run(folder)
    refuse_if_long_enough(run, request)
    spec = run.header.spec
    sources.require_source(spec.file, folder.experiment_of(spec.sha256))
    if not request.is_changed:
        sources.refuse_changed(spec, folder, request.change)
    return folder


def refuse_if_long_enough(run: Run, request: TrainRequest) -> None:
    """Refuses to go on with a run that has come as far as is asked for.

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
        done, asked = counted_text(num_epochs, "epoch"), f"--epochs {request.epochs}"
    elif request.steps is not None:
        if request.steps > step:
            return
        done, asked = counted_text(step, "step"), f"--steps {request.steps}"
    elif run.status == "finished":
        done, asked = counted_text(step, "step"), None
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
        f"the run {run.id} has already trained {done}"
        + (f"; `{asked}` asks for no more." if asked else "."),
        fix=f"train it longer, such as: {resume_command(run.typed, longer)}",
    )


def choose_interpreter(request: TrainRequest, asked: Undertaking) -> str:
    """The interpreter that trains: the one asked for, the run's own, or this one."""
    own = asked.header.python if asked.header else None
    return environments.find_interpreter(request.python or own)


@contextlib.contextmanager
def run_for(asked: Undertaking, machine: Machine, interrupts: Interrupts) -> Iterator[RunFolder]:
    """The run's folder, made if it is a new one; while it is used, somebody is set to train in it.

    A new run that nobody could be set to is not left behind.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed before.
    """
    interrupts.give_way()
    folder = asked.old or prepare(asked, machine)
    # Until the worker, which loads torch first, holds the run's lock. Where another command line
    # holds this already, the run is as safe.
    folder.attended.acquire()
    try:
        yield folder
    except FlatoutError:
        folder.attended.release()
        if asked.old is None:
            runs.remove_run(folder)
        raise


def prepare(asked: Undertaking, machine: Machine) -> RunFolder:
    """Makes the folder of a new run, or of a search, with a copy of the experiment's file in it."""
    spec, run_id = asked.spec, asked.run_id
    parent = folders.tunes_folder() if spec.tuning.is_only else folders.runs_folder()
    if spec.is_dry_run:
        # Removed by whoever has asked for it; what a crash leaves is the system's to remove.
        parent = Path(tempfile.mkdtemp(prefix="flatout-dry-run-"))
    header = RunHeader(
        id=runs.check_id(run_id) if run_id else runs.free_id(spec.name, parent),
        created_at=clock.now_s(),
        flatout_version=__version__,
        python=machine.python or sys.executable,
        on=asked.change.on,
        spec=spec,
        machine=machine,
    )
    folder = runs.create_run(header, parent)
    if spec.file:
        sources.copy_source(Path(spec.file), folder.experiment)
    return folder
