"""Training in this process: for notebooks and scripts, and for the worker.

`train` makes a run like any other; `train_in` takes up a run that is there.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from flatout import __version__
from flatout.engine.checkpoint import shared_checkpoint
from flatout.engine.course import Course, Task
from flatout.engine.echo import echo_here
from flatout.engine.experiment import Experiment, require_experiment
from flatout.engine.failures import bad_news
from flatout.engine.first_step import tried
from flatout.engine.fitted import fitted_for
from flatout.engine.journal import Journal, SilentJournal
from flatout.engine.watch import (
    StoppedEarly,
    StopRequest,
    signals_as_requests,
    watched_file,
)
from flatout.errors import FlatoutError, UsageError
from flatout.nouns.change import Change
from flatout.nouns.experiment_spec import ExperimentSpec
from flatout.nouns.finding import Finding, finding_from
from flatout.nouns.lines import DryRan, Failed, Finished, Stopped
from flatout.nouns.recipe import fixed_fields
from flatout.nouns.run import Run, RunHeader
from flatout.system.clock import now_s
from flatout.system.failed_start import is_failed_start, set_aside
from flatout.system.runs import (
    RunFolder,
    check_id,
    create_run,
    find_run,
    free_id,
    read_run,
    run_in_use,
)
from flatout.system.variables import repeat_products

# What ends a training that has not failed.
_STOPS = (StoppedEarly, KeyboardInterrupt, SystemExit)


@dataclass(frozen=True)
class Trained:
    """What a training in this process gives back.

    Args:
        run: the run as its folder tells.
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
    is_quiet: bool = False,
) -> Trained:
    """Trains an experiment in this process, in a run folder like any other run.

    In a Jupyter notebook a bar shows how far it is; elsewhere each epoch is printed.

    Args:
        experiment: what to train.
        use: recipe fields by name, with the values to fix; see docs/recipe.md.
        seed: of weights, order and augmentation. On resume the run's own seed is used.
        name: the run's id; by default notebook-0001, notebook-0002 ...
        resume: id or folder of a run of the same experiment to go on with.
        device: `cpu`, `cuda` or `cuda:1`; None takes a GPU if there is one. A shorter way to write
            `use={"device": ...}`.
        epochs: how many epochs in all, instead of the experiment's own length.
        steps: how many updates in all, instead of the experiment's own length; not on resume.
        is_quiet: shows nothing while it trains.

    Returns:
        The run and the trained model.

    Raises:
        UsageError: what was asked for cannot be.
        RunFailed: the run could not go on; its last checkpoint is as it was.
    """
    require_experiment(experiment, "train")
    fixed = fixed_fields(use, device)
    experiment = _with_length(experiment, epochs, steps)
    if not torch.cuda.is_initialized():
        # cuBLAS reads it when it begins. A worker is given it by whoever starts it.
        repeat_products()
    if resume is not None:
        folder = find_run(resume)
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
        model = train_in(Task(folder, spec, change, request, echo), lambda: experiment)
    assert model is not None, "this was no dry run"
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
            because="each of them is the length of the whole training",
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


def train_in(task: Task, load: Callable[[], Experiment]) -> nn.Module | None:
    """Takes up a run where it was left; every ending is told in its folder.

    Gives the trained model; None after a dry run.

    Args:
        task: which run, what is changed, and who may stop it.
        load: gives the experiment; what it raises is told like any other failure.

    Raises:
        UsageError: run-in-use, and what was asked for cannot be.
        RunFailed: the run could not go on.
        StoppedEarly: it was asked to stop before its ranks had met.
    """
    folder = task.folder
    if not task.ranks.is_first:
        # One writer for all ranks, who holds the lock and hears of requests.
        with fitted_for(folder):
            return _told(task, load)
    lock = folder.lock()
    if not lock.acquire():
        raise run_in_use(folder)
    try:
        with watched_file(folder.stop, task.request), fitted_for(folder, is_written=True):
            return _told(task, load)
    finally:
        lock.release()


def _told(task: Task, load: Callable[[], Experiment]) -> nn.Module | None:
    """Trains with the run's journal open, and tells there what goes wrong."""
    is_first = task.ranks.is_first
    journal = Journal(task.folder, task.echo) if is_first else SilentJournal()
    course: Course | None = None
    step = max(task.folder.checkpoint_steps(), default=0)
    try:
        task.ranks.join(lambda finding: journal.warn(_step(course, step), finding), task.request)
        checkpoint, damaged = shared_checkpoint(task.folder, task.ranks)
        state = checkpoint.state if checkpoint is not None else None
        step = checkpoint.step if checkpoint is not None else 0
        for finding in damaged:
            journal.warn(step, finding)
        experiment = load()
        if task.spec.is_dry_run:
            result = tried(experiment, task.spec, journal)
            journal.event(DryRan(at=now_s(), step=0, result=result))
            end = Finished(at=now_s(), step=0, train_s=0.0, split_s={}, num_samples_seen=0)
            journal.event(end, is_synced=True)
            return None
        course = Course(task, experiment, journal, state)
        return course.train()
    except BaseException as error:
        # A notebook has no log; that of a dry run is removed with its folder.
        is_logged = task.is_alone and not task.spec.is_dry_run
        news = bad_news(error, is_logged=is_logged)
        if news is None and isinstance(error, _STOPS):
            reason = error.reason if isinstance(error, StoppedEarly) else "stopped immediately"
            stopped = Stopped(at=now_s(), step=_step(course, step), reason=reason)
            with contextlib.suppress(FlatoutError):
                journal.event(stopped)
            raise
        task.ranks.leave(news or error)
        finding = finding_from(news) if news is not None else _own_fault(error, is_logged=is_logged)
        # A full disk cannot take this line; the failure itself is told by what is raised.
        with contextlib.suppress(FlatoutError):
            failed = Failed(at=now_s(), step=_step(course, step), finding=finding)
            # Where another process has taken over the run, this is the end of nobody else's.
            if finding.rule != "run-in-use":
                journal.event(failed, is_synced=True)
        if news is None or news is error:
            raise
        raise news from error
    finally:
        # A full disk cannot take the last lines either; the failure itself is already on its way.
        with contextlib.suppress(FlatoutError):
            journal.close()
        task.ranks.leave()


def _step(course: Course | None, before: int) -> int:
    return course.step if course is not None else before


def _own_fault(error: BaseException, *, is_logged: bool) -> Finding:
    return Finding(
        rule="internal-error",
        severity="error",
        problem=f"flatout itself failed: {type(error).__name__}: {error}",
        because="the traceback is in the run's worker.log" if is_logged else None,
    )
