"""Experiments from files: found, loaded, and named with file and line when they raise."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from flatout.engine.runtime.stop_signals import StopRequest
from flatout.engine.session.load_experiment import load_experiment
from flatout.engine.training.api import train_in
from flatout.engine.training.trainer import TrainTask
from flatout.errors import FlatoutError, UsageError
from flatout.schema.change import Change
from flatout.schema.experiment_spec import ExperimentSpec
from flatout.schema.run import RunHeader
from flatout.system.store.run_folder import RunFolder, create_run, free_id

if TYPE_CHECKING:
    from conftest import Tell

SRC = Path(__file__).resolve().parents[2] / "src"

SOURCE = """
import torch
from torch import nn
import flatout

class Points(torch.utils.data.Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        reach("item")
        return torch.randn(6), index % 3

def reach(place):
    if place == PLACE:
        ACTION

def build():
    reach("model")
    return nn.Sequential(nn.Linear(6, 4), Layer(), nn.Linear(4, 3))

class Layer(nn.Module):
    def forward(self, inputs):
        reach("forward")
        return inputs.relu()

def loss(model, batch):
    reach("loss")
    return nn.functional.cross_entropy(model(batch[0]), batch[1])

def metrics(model, batch):
    reach("metrics")
    return {"accuracy": (model(batch[0]).argmax(1) == batch[1]).float().mean()}

def collate(samples):
    reach("collate")
    return torch.utils.data.default_collate(samples)

def points(count):
    return torch.randn(count, 6), torch.arange(count) % 3

def schedule(optimizer):
    reach("schedule")
    return torch.optim.lr_scheduler.ConstantLR(optimizer)

def experiment(lr: float = 0.01):
    reach("experiment")
    return flatout.Experiment(
        model=build, optimizer=lambda p: torch.optim.SGD(p, lr=lr), loss=loss, metrics=metrics,
        train_data=Points, validation_data=lambda: points(16), batch_size=8, epochs=2,
        collate=collate, schedule=schedule,
    )
"""


@pytest.fixture
def write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[RunFolder, ExperimentSpec]]:
    """Writes an experiment's file and makes a run of it, in folders of this test."""
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    names: list[str] = []

    def written(
        name: str = "mine.py", place: str = "nowhere", action: str = "pass", **use: Any
    ) -> tuple[RunFolder, ExperimentSpec]:
        source = SOURCE.replace("PLACE", repr(place)).replace("ACTION", action)
        path = tmp_path / name
        path.write_text(source, encoding="utf-8")
        sys.modules.pop(path.stem, None)
        names.append(path.stem)
        spec = ExperimentSpec(
            name=path.stem, file=str(path), sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
            fixed={"num_threads": 1, **use},
        )  # fmt: skip
        header = RunHeader(
            id=free_id("mine"), created_at=0.0, flatout_version="0", python="", spec=spec
        )
        return create_run(header), spec

    before = set(sys.modules)
    yield written
    for name in set(names) - before:
        sys.modules.pop(name, None)


def train(folder: RunFolder, spec: ExperimentSpec) -> None:
    train_in(TrainTask(folder, spec, Change(), StopRequest()), lambda: load_experiment(spec))


def line_of(spec: ExperimentSpec, text: str) -> int:
    lines = Path(spec.file or "").read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


PLACES = ("experiment", "model", "schedule", "item", "collate", "forward", "loss", "metrics")


@pytest.mark.parametrize("place", PLACES)
def test_place_in_the_persons_file_is_named(write: Any, tell: Tell, place: str) -> None:
    folder, spec = write(place=place, action="raise KeyError('colour')", loader_workers=0)
    with pytest.raises(FlatoutError) as caught:
        train(folder, spec)
    assert caught.value.rule == "experiment-raised"
    assert isinstance(caught.value.__cause__, KeyError)
    finding = tell.failure(folder)
    assert "KeyError" in finding.problem and "colour" in finding.problem
    because = finding.because or ""
    assert f"mine.py:{line_of(spec, 'raise KeyError')} in reach" in because
    # Who called it there, too: the line is told that helps to find it.
    assert f"mine.py:{line_of(spec, f'reach({chr(34)}{place}{chr(34)})')} in " in because


@pytest.mark.parametrize("place", ["item", "collate"])
def test_place_is_named_when_a_worker_raised(write: Any, tell: Tell, place: str) -> None:
    folder, spec = write(place=place, action="raise KeyError('colour')", loader_workers=2)
    with pytest.raises(FlatoutError) as caught:
        train(folder, spec)
    assert caught.value.rule == "experiment-raised"
    finding = tell.failure(folder)
    assert "KeyError: 'colour'" in finding.problem
    assert f"mine.py:{line_of(spec, 'raise KeyError')} in reach" in (finding.because or "")


@pytest.mark.parametrize("num_workers", [0, 2])
def test_missing_file_is_named_when_a_sample_needs_it(
    write: Any, tell: Tell, num_workers: int
) -> None:
    folder, spec = write(
        place="item", action="open('/nowhere/photo-7.png')", loader_workers=num_workers
    )
    with pytest.raises(FlatoutError) as caught:
        train(folder, spec)
    assert caught.value.rule == "data-not-readable" and caught.value.exit_code == 1
    assert "/nowhere/photo-7.png" in tell.failure(folder).problem
    assert "mine.py:" in (tell.failure(folder).because or "")


def test_error_of_the_libraries_is_not_our_own_fault(write: Any, tell: Tell) -> None:
    # Raised by torch in the backward pass, where no line of the person's is being run.
    folder, spec = write()
    path = Path(spec.file)
    path.write_text(path.read_text().replace("inputs.relu()", "inputs.relu().add_(1)"))
    spec = ExperimentSpec(name="mine", file=str(path), fixed=spec.fixed)
    with pytest.raises(FlatoutError) as caught:
        train(folder, spec)
    assert caught.value.rule == "experiment-raised"
    assert "inplace operation" in caught.value.problem


def test_schedule_that_is_too_short_is_not_our_own_fault(write: Any, tell: Tell) -> None:
    folder, spec = write()
    path = Path(spec.file or "")
    path.write_text(
        path.read_text().replace("ConstantLR(optimizer)", "OneCycleLR(optimizer, 0.1, 1)")
    )
    with pytest.raises(FlatoutError) as caught:
        train(folder, ExperimentSpec(name="mine", file=str(path), fixed=spec.fixed))
    assert caught.value.rule == "schedule-is-over"
    assert "total steps" in (caught.value.because or "")


# Loading.


def test_experiment_is_loaded_with_its_parameters(write: Any) -> None:
    _, spec = write()
    experiment = load_experiment(spec)
    assert experiment.batch_size == 8
    assert sys.modules["mine"].__file__ == spec.file


def test_text_is_loaded_and_not_what_was_imported_or_compiled_of_another(write: Any) -> None:
    """Two variants of a size and a second, as from one checkout, copied to the same name."""
    _, spec = write()
    path, moment = Path(spec.file), (1_700_000_000, 1_700_000_000)
    os.utime(path, moment)
    load_experiment(spec)
    text = path.read_text()
    assert "batch_size=8" in text
    path.write_text(text.replace("batch_size=8", "batch_size=6"))
    os.utime(path, moment)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    changed = msgspec.structs.replace(spec, sha256=digest)
    assert load_experiment(changed).batch_size == 6
    # The module is not made anew without need: its classes stay the same ones.
    module = sys.modules["mine"]
    assert load_experiment(changed).batch_size == 6
    assert sys.modules["mine"] is module


def test_built_in_is_loaded() -> None:
    assert load_experiment(ExperimentSpec(name="mlp", parameters={"rows": 64})).batch_size == 64


def test_file_that_was_changed_is_refused(write: Any, tell: Tell) -> None:
    folder, spec = write()
    with open(spec.file, "a", encoding="utf-8") as file:
        file.write("\n# changed")
    with pytest.raises(UsageError) as caught:
        train(folder, spec)
    assert caught.value.rule == "experiment-changed"
    assert tell.failure(folder).rule == "experiment-changed"


@pytest.mark.parametrize("name", ["random.py", "my.experiment.py", "torch.py", "sys.py"])
def test_name_of_another_module_is_refused(write: Any, name: str) -> None:
    held = {key: sys.modules.get(key) for key in ("random", "torch", "sys")}
    folder, spec = write("written.py")
    path = Path(spec.file).with_name(name)
    path.write_text(Path(spec.file).read_text())
    with pytest.raises(UsageError) as caught:
        load_experiment(ExperimentSpec(name=path.stem, file=str(path)))
    assert caught.value.rule == "experiment-name-taken" and name in caught.value.problem
    assert {key: sys.modules.get(key) for key in held} == held


def test_experiment_that_returns_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "odd_one.py"
    path.write_text("def experiment():\n    return 3\n")
    with pytest.raises(UsageError) as caught:
        load_experiment(ExperimentSpec(name="odd_one", file=str(path)))
    assert caught.value.rule == "bad-experiment" and "int" in caught.value.problem


# Workers that are started, not forked: as on Windows.

SPAWNED = """
import multiprocessing, sys
from flatout.engine.training.trainer import TrainTask
from flatout.engine.session.load_experiment import load_experiment
from flatout.engine.training.api import train_in
from flatout.engine.runtime.stop_signals import StopRequest
from flatout.errors import FlatoutError
from flatout.schema.change import Change
from flatout.schema.run import RunHeader
from flatout.system.atomic_files import read_json
from flatout.system.store.run_folder import RunFolder
from pathlib import Path

if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    folder = RunFolder(Path(sys.argv[1]))
    spec = read_json(folder.header, RunHeader).spec
    try:
        train_in(TrainTask(folder, spec, Change(), StopRequest()), lambda: load_experiment(spec))
    except FlatoutError as error:
        sys.exit(error.rule)
"""


def trained_with_spawn(folder: RunFolder, tmp_path: Path) -> str:
    """What a process says in which workers are spawned: the rule it ended with, or nothing."""
    script = tmp_path / "start_it.py"
    script.write_text(SPAWNED)
    done = subprocess.run(
        [sys.executable, str(script), str(folder.path)],
        env={**os.environ, "PYTHONPATH": str(SRC)},
        capture_output=True, text=True, check=False, cwd=tmp_path.parent,
    )  # fmt: skip
    return done.stderr.strip()


def test_spawned_workers_find_the_classes_of_the_file(
    write: Any, tell: Tell, tmp_path: Path
) -> None:
    folder, _ = write(loader_workers=1)
    assert trained_with_spawn(folder, tmp_path) == ""
    forked, spec = write(loader_workers=0)
    train(forked, spec)
    assert tell.traces(folder) == tell.traces(forked)


def test_what_cannot_be_sent_to_spawned_workers_is_reported(
    write: Any, tell: Tell, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, spec = write(loader_workers=1)
    path = Path(spec.file)
    path.write_text(path.read_text().replace("collate=collate", "collate=lambda s: collate(s)"))
    before = multiprocessing.get_start_method()
    multiprocessing.set_start_method("spawn", force=True)
    try:
        with pytest.raises(FlatoutError):
            train(folder, ExperimentSpec(name="mine", file=str(path), fixed=spec.fixed))
    finally:
        multiprocessing.set_start_method(before, force=True)
    finding = tell.failure(folder)
    assert finding.rule == "data-cannot-be-sent" and "lambda" in finding.problem
    assert "loader_workers=0" in finding.fixes[0].text


@pytest.mark.parametrize("place", ["item", "loss", "nowhere"])
def test_workers_end_with_the_training(write: Any, place: str) -> None:
    """Also while somebody, a notebook for example, still holds the error."""
    before = set(multiprocessing.active_children())
    folder, spec = write(place=place, action="raise KeyError", loader_workers=2)
    caught: list[BaseException] = []
    try:
        train(folder, spec)
    except FlatoutError as error:
        caught.append(error)
    assert set(multiprocessing.active_children()) <= before
    assert len(caught) == (place != "nowhere")


@pytest.mark.usefixtures("write")
def test_damaged_data_is_named_and_not_trained_on(
    tell: Tell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLATOUT_DATA", str(tmp_path / "data"))
    place = tmp_path / "data" / "mnist"
    place.mkdir(parents=True)
    for kind in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (place / f"{kind}-ubyte.gz").write_bytes(b"not what was published")
    spec = ExperimentSpec(name="mnist", fixed={"num_threads": 1})
    folder = create_run(
        RunHeader(id="mnist-0001", created_at=0.0, flatout_version="0", python="", spec=spec)
    )
    with pytest.raises(FlatoutError) as caught:
        train(folder, spec)
    assert caught.value.rule == "damaged-data"
    assert str(place) in caught.value.problem
    assert tell.failure(folder).rule == "damaged-data"
