"""Real trainings of small models, in run folders of the test's own."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import importlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors
import torch
from support.fake_home import SRC
from support.forked_commands import ForkedCommands
from support.forked_ranks import ForkedRanks
from torch import Tensor, nn

from flatout.engine import Experiment
from flatout.engine.runtime.stop_signals import StopRequest
from flatout.engine.session.load_experiment import load_experiment
from flatout.engine.tensors.state_tree import pack
from flatout.engine.training.api import train_in
from flatout.engine.training.checkpoints import read_checkpoint
from flatout.engine.training.trainer import TrainTask
from flatout.schema.change import Change
from flatout.schema.experiment_spec import ExperimentSpec
from flatout.schema.finding import Finding
from flatout.schema.run import RunHeader
from flatout.schema.run_lines import (
    Classified,
    EpochEnded,
    Event,
    Failed,
    Generated,
    Metric,
    Validated,
    Warned,
)
from flatout.system import atomic_files
from flatout.system.store.run_folder import RunFolder, create_run, free_id

# To look through these takes about 50 ms.
_MANY_OBJECTS = 100_000
# Times differ between equal runs, and with them where a line begins.
_OF_THE_CLOCK = ("split_s", "metrics_bytes")


class Crash(BaseException):
    """Ends a training as a power cut would: nothing more is saved."""


class Lab:
    """Makes runs, interrupts them, and tells what they left.

    use: recipe fields that every new run of this lab fixes.
    """

    def __init__(self) -> None:
        self.use: dict[str, Any] = {"num_threads": 1}

    def new(self, **use: Any) -> RunFolder:
        """The folder of a new run; `seed` is one of the names."""
        seed = use.pop("seed", 0)
        init = use.pop("init", None)
        spec = ExperimentSpec(name="lab", seed=seed, fixed=self.use | use, init=init)
        return create_run(
            RunHeader(id=free_id("lab"), created_at=0.0, flatout_version="0", python="", spec=spec)
        )

    def go_on(
        self,
        folder: RunFolder,
        experiment: Experiment,
        *,
        stop_after: int | None = None,
        epochs: int | None = None,
        **use: Any,
    ) -> nn.Module:
        """Trains a run from where it is; stop_after: forward passes of training until the stop."""
        spec = atomic_files.read_json(folder.header, RunHeader).spec
        request = StopRequest()
        if stop_after is not None:
            experiment = calling(experiment, stop_after, lambda: request.make("test"))
        task = TrainTask(folder, spec, Change(fixed=use, epochs=epochs), request)
        return train_in(task, lambda: experiment)

    def run(self, experiment: Experiment, **use: Any) -> RunFolder:
        """A run trained without interruption."""
        folder = self.new(**use)
        self.go_on(folder, experiment)
        return folder

    def crash(self, folder: RunFolder, experiment: Experiment, after: int, **use: Any) -> None:
        """Trains on until that many forward passes were made, and ends without saving."""

        def fall() -> None:
            raise Crash

        with pytest.raises(Crash):
            self.go_on(folder, calling(experiment, after, fall), **use)

    def copied_at(
        self, folder: RunFolder, experiment: Experiment, after: int, to: Path
    ) -> RunFolder:
        """The run's folder as it was in the middle of its training."""
        self.go_on(folder, calling(experiment, after, lambda: _copy_living(folder.path, to)))
        return RunFolder(to)


def calling(experiment: Experiment, after: int, action: Callable[[], None]) -> Experiment:
    """The same experiment, whose loss or step does something in its so-many-th call in training."""
    calls = 0

    def count(model: nn.Module) -> None:
        nonlocal calls
        if any(parameter.dtype == torch.float64 for parameter in model.parameters()):
            # Whether parts of a batch compute the same is asked in fp64, apart from the training.
            return
        calls += model.training
        if model.training and calls == after:
            action()

    def loss(model: nn.Module, batch: Any) -> Any:
        count(model)
        return experiment.loss(model, batch)

    def step(updates: Any, model: nn.Module, batch: Any) -> Any:
        count(model)
        return experiment.step(updates, model, batch)

    own = {"loss": loss} if experiment.step is None else {"step": step}
    return dataclasses.replace(experiment, **own)


def _copy_living(source: Path, to: Path) -> None:
    # Checkpoints are written and removed meanwhile: files vanish before they are copied.
    with contextlib.suppress(shutil.Error):
        shutil.copytree(source, to)


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A lab with a state folder of its own."""
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path / "state"))
    return Lab()


@pytest.fixture
def run_of(lab: Lab) -> Callable[..., RunFolder]:
    """Trains an experiment that is named by a spec, as a worker does."""

    def trained(**spec_fields: Any) -> RunFolder:
        fixed = {"num_threads": 1} | spec_fields.pop("fixed", {})
        spec = ExperimentSpec(fixed=fixed, **spec_fields)
        folder = create_run(
            RunHeader(
                id=free_id(spec.name), created_at=0.0, flatout_version="0", python="", spec=spec
            )
        )
        if spec.file:
            shutil.copy(spec.file, folder.experiment)
        task = TrainTask(folder, spec, Change(), StopRequest())
        train_in(task, lambda: load_experiment(spec))
        return folder

    return trained


@pytest.fixture
def plain() -> Callable[..., Experiment]:
    """Makes a small classifier of made-up points; fields by name replace its own."""
    return plain_experiment


def plain_experiment(**fields: Any) -> Experiment:
    """Dropout and BatchNorm, 50 samples in batches of 8: the last one has 2."""
    chosen: dict[str, Any] = {
        "model": plain_model,
        "optimizer": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
        "loss": plain_loss,
        "train_data": lambda: points(50, seed=1),
        "validation_data": lambda: points(20, seed=2),
        "batch_size": 8,
        "epochs": 3,
    }
    return Experiment(**(chosen | fields))


def plain_model() -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3)
    )


def plain_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    inputs, labels = batch
    return nn.functional.cross_entropy(model(inputs), labels)


def points(count: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """Points (count, 6) and their classes (count,)."""
    dice = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 6, generator=dice)
    return inputs, inputs[:, :3].argmax(dim=1)


@pytest.fixture
def tell() -> type[Tell]:
    """Reads what a run has left."""
    return Tell


class Tell:
    """What is in a run's folder."""

    @staticmethod
    def events(folder: RunFolder, kind: type | None = None) -> list[Any]:
        """Events, of one kind or all."""
        lines = atomic_files.read_lines(folder.events, Event)
        return [line for line in lines if kind is None or isinstance(line, kind)]

    @staticmethod
    def metrics(folder: RunFolder, kind: type | None = None) -> list[Any]:
        """Metrics, of one kind or all."""
        lines = atomic_files.read_lines(folder.metrics, Metric)
        return [line for line in lines if kind is None or isinstance(line, kind)]

    @staticmethod
    def findings(folder: RunFolder) -> list[Finding]:
        """Findings of all events."""
        lines = atomic_files.read_lines(folder.events, Event)
        found = [line.finding for line in lines if isinstance(line, Warned | Failed)]
        return [finding for finding in found if finding is not None]

    @classmethod
    def failure(cls, folder: RunFolder) -> Finding:
        """What ended the run."""
        finding: Finding = cls.events(folder, Failed)[-1].finding
        return finding

    @classmethod
    def rules(cls, folder: RunFolder) -> set[str]:
        """Rule ids of all findings."""
        return {finding.rule for finding in cls.findings(folder)}

    @staticmethod
    def state(folder: RunFolder) -> Any:
        """The state in the last checkpoint."""
        checkpoint, damaged = read_checkpoint(folder)
        assert checkpoint is not None and not damaged
        return checkpoint.state

    @classmethod
    def traces(cls, folder: RunFolder) -> dict[str, Any]:
        """All that must be equal in runs that are to be equal, as comparable values."""
        state = {name: part for name, part in cls.state(folder).items()
                 if name not in _OF_THE_CLOCK}  # fmt: skip
        packed = pack(state)
        reported = cls.metrics(folder, Validated | EpochEnded | Classified | Generated)  # type: ignore[arg-type]
        return {
            "weights": weights_in(folder),
            "tree": packed.tree,
            "tensors": {name: _as_bytes(tensor) for name, tensor in packed.tensors.items()},
            "lines": [without_time(line) for line in reported],
        }


def weights_in(folder: RunFolder) -> dict[str, Any]:
    """The kept weights as bytes by name, and what is told about them."""
    with safetensors.safe_open(folder.weights, framework="pt") as file:
        names = list(file.keys())
        return {name: _as_bytes(file.get_tensor(name)) for name in names} | file.metadata()


def _as_bytes(tensor: Tensor) -> bytes:
    content: bytes = tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return content


def without_time(line: Any) -> tuple[Any, ...]:
    """A line without the time of day."""
    return tuple(getattr(line, name) for name in line.__struct_fields__ if name != "at")


@pytest.fixture(scope="module", autouse=True)
def few_collections() -> None:
    """Leaves objects of torch and of earlier tests out of garbage collections.

    Tests make these when memory runs out and before speeds are measured. Repeated per module:
    `function_refusing` puts all of them back.
    """
    importlib.import_module("torch._dynamo")
    if len(gc.get_objects()) > _MANY_OBJECTS:
        gc.collect()
        gc.freeze()


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for all tests, also for those that run beside these."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture(scope="session")
def once(shared_folder: Path) -> Callable[[str, Callable[[Path], None]], Path]:
    """Fills a folder for all tests that name it: the first one does, the others wait for it."""

    def filled(name: str, fill: Callable[[Path], None]) -> Path:
        folder = shared_folder / name
        folder.mkdir(exist_ok=True)
        lock = atomic_files.FileLock(folder / "lock")
        while not lock.acquire():
            time.sleep(0.1)
        try:
            if not (folder / "whole").exists():
                try:
                    fill(folder)
                except BaseException:
                    # The next test fills it anew, and not on top of half of it.
                    for part in folder.iterdir():
                        if part.name != "lock":
                            shutil.rmtree(part) if part.is_dir() else part.unlink()
                    raise
                (folder / "whole").touch()
        finally:
            lock.release()
        return folder

    return filled


@pytest.fixture(scope="session")
def forked() -> Iterator[ForkedCommands]:
    """Runs command lines that need not load flatout, each as a process."""
    commands = ForkedCommands(SRC, {**os.environ, "PYTHONPATH": SRC})
    yield commands
    commands.close()


@pytest.fixture(scope="session")
def forked_ranks() -> Iterator[ForkedRanks]:
    """Runs ranks that need not load torch, each as a process."""
    ranks = ForkedRanks()
    yield ranks
    ranks.close()


@pytest.fixture(scope="session", autouse=True)
def compiled_once(shared_folder: Path) -> Iterator[None]:
    """One cache of compiled code for all tests, also of those that run beside these."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(shared_folder / "compiled"))
        yield


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small models on busy cores: threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
