"""Training in this process: for notebooks and scripts, and for the worker.

`train` makes a run like any other; `train_in` takes up a run that is there.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from flatout import __version__
from flatout.engine.data.fitted import fitted_for
from flatout.engine.experiment import Experiment, require_experiment
from flatout.engine.runlog.event_log import EventLog, SilentEventLog
from flatout.engine.runlog.progress_echo import echo_here
from flatout.engine.runtime.device import prepare_products
from flatout.engine.runtime.error_map import to_flatout_error
from flatout.engine.runtime.stop_signals import (
    StoppedEarly,
    StopRequest,
    signals_as_requests,
    watched_file,
)
from flatout.engine.training.checkpoints import shared_checkpoint
from flatout.engine.training.dry_run import tried
from flatout.engine.training.trainer import Trainer, TrainTask
from flatout.errors import FlatoutError, UsageError
from flatout.schema.change import Change
from flatout.schema.experiment_spec import ExperimentSpec
from flatout.schema.finding import finding_from, internal_error
from flatout.schema.recipe import fixed_fields
from flatout.schema.run import Run, RunHeader
from flatout.schema.run_lines import DryRan, Failed, Finished, Stopped
from flatout.system.clock import now_s
from flatout.system.store.failed_start import is_failed_start, set_aside
from flatout.system.store.run_folder import (
    RunFolder,
    check_id,
    create_run,
    find_run,
    free_id,
    read_run,
    run_in_use,
)
from flatout.system.tracker_process import num_event_bytes, requested_trackers, start_trackers

# What ends a training that has not failed.
_STOPS = (StoppedEarly, KeyboardInterrupt, SystemExit)


@dataclass(frozen=True)
class Trained:
    """The result of a training in this process.

    Args:
        run: the run, read from its folder.
        model: the trained model, with its last weights, on the device it was trained on.
    """

    run: Run
    model: nn.Module

    @property
    def metrics(self) -> dict[str, float | None]:
        """Metrics of the last validation (None: not finite); empty without validation data."""
        return self.run.validations[-1].metrics if self.run.validations else {}


def train(
    experiment: Experiment,
    *,
    use: dict[str, Any] | None = None,
    seed: int = 0,
    name: str | None = None,
    resume: str | None = None,
    device: str | None = None,
    epochs: int | None = None,
    steps: int | None = None,
    track: str | Sequence[str] = (),
    is_quiet: bool = False,
) -> Trained:
    """Trains an experiment in this process, in a run folder like any other run.

    In a Jupyter notebook a bar shows how far it is; elsewhere each epoch is printed.

    Args:
        experiment: what to train.
        use: recipe fields by name, with the values to fix; see `flatout docs recipe`.
        seed: of weights, order and augmentation. On resume the run's own seed is used.
        name: the run's id; by default notebook-0001, notebook-0002 ...
        resume: id or folder of a run of the same experiment to continue with.
        device: `cpu`, `cuda` or `cuda:1`; None takes a GPU if there is one. A shorter way to write
            `use={"device": ...}`.
        epochs: how many epochs in all, instead of the experiment's own length.
        steps: how many updates in all, instead of the experiment's own length; not on resume.
        track: trackers that the run is sent to, such as `mlflow`; see `flatout docs trackers`.
        is_quiet: shows nothing while it trains.

    Returns:
        The run and the trained model.

    Raises:
        UsageError: the request is invalid.
        RunFailed: the run could not continue; its last checkpoint is as it was.
    """
    require_experiment(experiment, "train")
    fixed = fixed_fields(use, device)
    experiment = _with_length(experiment, epochs, steps)
    prepare_products()
    before = find_run(resume) if resume is not None else None
    trackers = requested_trackers([track] if isinstance(track, str) else track, before)
    if before is not None:
        folder = before
        spec, change = read_run(folder).header.spec, Change(fixed=fixed, epochs=epochs, steps=steps)
    else:
        spec = ExperimentSpec(name="notebook", seed=seed, fixed=fixed, epochs=epochs, steps=steps)
        header = RunHeader(
            id=check_id(name) if name else free_id(spec.name),
            created_at=now_s(),
            flatout_version=__version__,
            python=sys.executable,
            spec=spec,
        )
        folder, change = create_run(header), Change()
    request = StopRequest()
    with signals_as_requests(request), _none_left_of_a_failed_start(folder, resume is None):
        echo = None if is_quiet else echo_here()
        start_trackers(folder, trackers, num_event_bytes(folder))
        model = train_in(TrainTask(folder, spec, change, request, echo), lambda: experiment)
    assert model is not None, "this was not a dry run"
    return Trained(run=read_run(folder), model=model)


def _with_length(experiment: Experiment, epochs: int | None, steps: int | None) -> Experiment:
    """The experiment, that long.

    Raises:
        UsageError: bad-experiment.
    """
    if epochs is None and steps is None:
        return experiment
    if epochs is not None and steps is not None:
        raise UsageError(
            "bad-experiment",
            "`epochs` and `steps` cannot be combined.",
            because="each sets the length of the whole training",
            fix="give one of them",
        )
    # The experiment's own check says what is wrong with the number.
    return replace(experiment, epochs=epochs, steps=steps)


@contextlib.contextmanager
def _none_left_of_a_failed_start(folder: RunFolder, is_new: bool) -> Iterator[None]:
    try:
        yield
    except FlatoutError as error:
        if is_new and is_failed_start(run := read_run(folder), error.rule, error.exit_code):
            set_aside(run)
        raise


def train_in(task: TrainTask, load: Callable[[], Experiment]) -> nn.Module | None:
    """Starts or resumes a run; every ending is logged in its folder.

    Gives the trained model; None after a dry run.

    Args:
        task: which run, what is changed, and who may stop it.
        load: gives the experiment; what it raises is logged like any other failure.

    Raises:
        UsageError: run-in-use, and the request is invalid.
        RunFailed: the run could not continue.
        StoppedEarly: a stop was requested before its ranks had met.
    """
    folder = task.folder
    if not task.ranks.is_first:
        # One writer for all ranks, who holds the lock and hears of requests.
        with fitted_for(folder):
            return _with_failures_logged(task, load)
    lock = folder.lock()
    if not lock.acquire():
        raise run_in_use(folder)
    try:
        with watched_file(folder.stop, task.request), fitted_for(folder, is_written=True):
            return _with_failures_logged(task, load)
    finally:
        lock.release()


def _with_failures_logged(task: TrainTask, load: Callable[[], Experiment]) -> nn.Module | None:
    """Trains with the run's event log open, and logs failures there."""
    is_first = task.ranks.is_first
    event_log = EventLog(task.folder, task.echo) if is_first else SilentEventLog()
    trainer: Trainer | None = None
    step = max(task.folder.checkpoint_steps(), default=0)
    try:
        task.ranks.join(lambda finding: event_log.warn(_step(trainer, step), finding), task.request)
        checkpoint, damaged = shared_checkpoint(task.folder, task.ranks)
        state = checkpoint.state if checkpoint is not None else None
        step = checkpoint.step if checkpoint is not None else 0
        for finding in damaged:
            event_log.warn(step, finding)
        experiment = load()
        if task.spec.is_dry_run:
            result = tried(experiment, task.spec, event_log)
            event_log.event(DryRan(at=now_s(), step=0, result=result))
            end = Finished(at=now_s(), step=0, train_s=0.0, split_s={}, num_samples_seen=0)
            event_log.event(end, is_synced=True)
            return None
        trainer = Trainer(task, experiment, event_log, state)
        return trainer.train()
    except BaseException as error:
        # A notebook has no log; that of a dry run is removed with its folder.
        is_logged = task.is_alone and not task.spec.is_dry_run
        known_error = to_flatout_error(error, is_logged=is_logged)
        if known_error is None and isinstance(error, _STOPS):
            reason = error.reason if isinstance(error, StoppedEarly) else "stopped immediately"
            stopped = Stopped(at=now_s(), step=_step(trainer, step), reason=reason)
            with contextlib.suppress(FlatoutError):
                event_log.event(stopped)
            raise
        because = "the traceback is in the run's worker.log" if is_logged else None
        finding = (
            finding_from(known_error) if known_error is not None else internal_error(error, because)
        )
        # A full disk cannot take this line; the exception reports the failure itself.
        with contextlib.suppress(FlatoutError):
            failed = Failed(at=now_s(), step=_step(trainer, step), finding=finding)
            # Where another process has taken over the run, only this process ends.
            if finding.rule != "run-in-use":
                event_log.event(failed, is_synced=True)
        # After that: leaving may take longer than a supervisor waits.
        task.ranks.leave(known_error or error)
        if known_error is None or known_error is error:
            raise
        raise known_error from error
    finally:
        # A full disk cannot take the last lines either; the failure itself is already on its way.
        with contextlib.suppress(FlatoutError):
            event_log.close()
        task.ranks.leave()


def _step(trainer: Trainer | None, before: int) -> int:
    return trainer.step if trainer is not None else before
