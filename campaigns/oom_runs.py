"""Trainings in this process that run out of memory, compared with ones set to use less."""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import oom_models
import torch
from killed_run import difference
from support.oom_injection import Injection, between, in_validation, stopping

from flatout.engine import Experiment
from flatout.engine.runtime.stop_signals import StopRequest
from flatout.engine.training.api import train_in
from flatout.engine.training.trainer import TrainTask
from flatout.errors import FlatoutError
from flatout.schema.change import Change
from flatout.schema.experiment_spec import ExperimentSpec
from flatout.schema.oom_adaptation import OomAdaptation
from flatout.schema.run import RunHeader
from flatout.system.store.run_folder import RunFolder, create_run, read_run

# Counted: the third and the fourth update, with the checkpoint after it and what is read for the
# next; or the first validation.
FIRST, LAST = 3, 5
UPDATES_PER_EPOCH = -(-oom_models.NUM_SAMPLES // oom_models.BATCH_SIZE)
_OF_UPDATES = ("data", "forward", "backward")
_RECIPE = {"num_threads": 1, "checkpoint_every": 2}


@dataclass(frozen=True, kw_only=True)
class Made:
    """The result of a training that ran out of memory.

    problem: None if it continued and ended like the one that used less memory from that step on.
    operation: the one that failed. went_on: it finished. adaptation: what it reported.
    """

    operation: str
    problem: str | None
    went_on: bool = True
    adaptation: OomAdaptation | None = None


@dataclass
class Trials:
    """Trainings of the four models, in a folder of their own.

    injected: creates the injection. use: recipe fields of all trainings.
    """

    folder: Path
    injected: Callable[[int | None], Injection] = Injection
    use: dict[str, Any] = field(default_factory=dict)
    references: dict[tuple[Any, ...], RunFolder] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def num_operations(self, name: str, part: str) -> int:
        """How many operations can fail."""
        injection = self.injected(None)
        self._trained(name, part, injection, self._new(name, f"dry-{name}-{part}"))
        return injection.num_operations

    def made(self, name: str, part: str, at: int) -> Made | None:
        """A training whose nth operation fails; None if it has fewer: how often losses are read
        depends on timing.

        Args:
            name: of the model.
            part: `updates` or `validation`.
            at: number of the operation, from 1 on.
        """
        injection = self.injected(at)
        folder = self._new(name, f"{name}-{part}-{at}-{next(self.numbers)}")
        operation = f"{part} {at}"
        try:
            self._trained(name, part, injection, folder)
        except FlatoutError as error:
            said = f"{operation}: {injection.failed}"
            return Made(operation=said, problem=str(error), went_on=False)
        operation = f"{operation}: {injection.failed}"
        adaptations = read_run(folder).adaptations
        if injection.failed is None:
            return None
        adaptation = adaptations[0] if adaptations else None
        problem = difference(folder, self._reference(name, adaptation), b"")
        if problem is None:
            shutil.rmtree(folder.path)
        return Made(operation=operation, problem=problem, adaptation=adaptation)

    def cpu_s(self, name: str, at: int | None) -> float:
        """CPU time of a training in which that operation fails; with None, none fails."""
        folder = self._new(name, f"cost-{name}-{at}-{next(self.numbers)}")
        begin_s = time.process_time()
        self._trained(name, "updates", self.injected(at), folder)
        return time.process_time() - begin_s

    def _reference(self, name: str, adaptation: OomAdaptation | None) -> RunFolder:
        """A run that was set to use less memory from that step on.

        Without an adaptation nothing was changed: an uninterrupted run.
        """
        key: tuple[Any, ...] = (name, None)
        fixed: dict[str, Any] = {}
        num_epochs, is_between = 0, False
        if adaptation is not None:
            # In the first update of an epoch, what came before it had been validated by then.
            num_epochs, rest = divmod(adaptation.step - 1, UPDATES_PER_EPOCH)
            is_between = num_epochs > 0 and rest == 0 and adaptation.part in _OF_UPDATES
            is_between &= adaptation.is_in_place
            key = (name, adaptation.step, adaptation.kind, adaptation.after, is_between)
            fixed = {"micro_batch_size": adaptation.after}
            if adaptation.kind == "recomputed":
                fixed = {"activation_checkpointing": True}
        if key not in self.references:
            folder = self._new(name, "-".join(map(str, ("reference", *key))))
            if is_between:
                _train(folder, oom_models.experiment(name), epochs=num_epochs)
            elif adaptation is not None and adaptation.step > 1:
                request = StopRequest()
                call = _call_of(name, adaptation.step - 1)
                stopped = functools.partial(stopping, request=request, at=call)
                _train(folder, oom_models.experiment(name, stopped), request=request)
            _train(folder, oom_models.experiment(name), fixed, epochs=oom_models.EPOCHS)
            self.references[key] = folder
        return self.references[key]

    def _trained(self, name: str, part: str, injection: Injection, folder: RunFolder) -> None:
        first, last = _call_of(name, FIRST), _call_of(name, LAST)

        def watched(loss: Callable[..., Any]) -> Callable[..., Any]:
            if part == "validation":
                return in_validation(loss, injection)
            return between(loss, injection, first, last)

        with injection:
            _train(folder, oom_models.experiment(name, watched))

    def _new(self, name: str, run_id: str) -> RunFolder:
        fixed = _RECIPE | oom_models.USE.get(name, {}) | self.use | oom_models.USE.get(name, {})
        spec = ExperimentSpec(name=name, fixed=fixed)
        header = RunHeader(id=run_id, created_at=0.0, flatout_version="0", python="", spec=spec)
        return create_run(header, self.folder)


def _call_of(name: str, update: int) -> int:
    """The number of the call of the training loss at the start of that update."""
    size = oom_models.USE.get(name, {}).get("micro_batch_size", oom_models.BATCH_SIZE)
    # The last batch of an epoch has fewer samples.
    batch, rest = oom_models.BATCH_SIZE, oom_models.NUM_SAMPLES % oom_models.BATCH_SIZE
    num_samples = [rest if n % UPDATES_PER_EPOCH == 0 else batch for n in range(1, update)]
    return sum(-(-num // size) for num in num_samples) + 1


def _train(
    folder: RunFolder,
    experiment: Experiment,
    fixed: dict[str, Any] | None = None,
    request: StopRequest | None = None,
    epochs: int | None = None,
) -> None:
    """Continues a run, to its end or until it is asked to stop."""
    spec = read_run(folder).header.spec
    change = Change(fixed=fixed or {}, epochs=epochs)
    task = TrainTask(folder, spec, change, request or StopRequest())
    train_in(task, lambda: experiment)


@contextlib.contextmanager
def quiet_state(folder: Path) -> Iterator[None]:
    """Uses a separate state folder and one thread of torch; leaves little garbage."""
    before, threads = os.environ.get("FLATOUT_STATE"), torch.get_num_threads()
    os.environ["FLATOUT_STATE"] = str(folder)
    torch.set_num_threads(1)
    # Each out-of-memory error scans all objects; leave out those of torch and other libraries.
    is_frozen = gc.get_freeze_count() > 0
    if not is_frozen:
        gc.collect()
        gc.freeze()
    try:
        yield
    finally:
        if not is_frozen:
            gc.unfreeze()
        torch.set_num_threads(threads)
        if before is None:
            del os.environ["FLATOUT_STATE"]
        else:
            os.environ["FLATOUT_STATE"] = before
