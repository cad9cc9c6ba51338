"""A run goes on with its mended file: from the last checkpoint, and with what was before kept."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from support.forked_commands import ForkedCommands

from flatout.schema.run import RunHeader
from flatout.schema.run_lines import FileChanged, Validated
from flatout.system import atomic_files
from flatout.system.store.run_folder import RunFolder, read_run

if TYPE_CHECKING:
    from conftest import Tell

Once = Callable[[str, Callable[[Path], None]], Path]

FILE = """
import torch
from torch import nn
import flatout


def points(count, seed):
    dice = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 6, generator=dice)
    return inputs, inputs[:, :3].argmax(dim=1)


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def metrics(model, batch):
    right = (model(batch[0]).argmax(1) == batch[1]).float().mean()
    return {"accuracy": right, "loss": loss(model, batch)}


def build():
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 3))


def experiment(lr: float = 0.01, epochs: int = 3) -> flatout.Experiment:
    return flatout.Experiment(
        model=build,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=lr),
        schedule=lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9),
        schedule_every="step",
        loss=loss,
        metrics=metrics,
        train_data=lambda: points(48, 1),
        validation_data=lambda: points(24, 2),
        batch_size=8,
        epochs=epochs,
        best="accuracy",
    )
"""
# The second validation fails: one batch was tried, and each validation has three.
FAILS_LATE = FILE.replace(
    "def metrics(model, batch):\n",
    "CALLS = []\n\n\ndef metrics(model, batch):\n    CALLS.append(1)\n"
    "    assert len(CALLS) < 6, 'a mistake'\n",
)
SRC = str(Path(__file__).resolve().parents[2] / "src")


class Bench:
    """A folder to type commands in, which has the file."""

    def __init__(self, folder: Path, tell: type[Tell], forked: ForkedCommands) -> None:
        self.folder = folder
        self.tell = tell
        self.forked = forked
        self.file = folder / "my points.py"
        self.write(FILE)

    def write(self, text: str) -> None:
        self.file.write_text(text, encoding="utf-8")

    def type(self, *words: str, code: int = 0) -> str:
        """What a command prints on both streams."""
        environment = {
            **os.environ, "FLATOUT_STATE": str(self.folder / "state"), "OMP_NUM_THREADS": "1",
            "PYTHONPATH": SRC,
        }  # fmt: skip
        # To draw each run would take long.
        done = self.forked.run(
            words, environment=environment, folder=self.folder, missing=("matplotlib",),
            limit_s=300.0, is_merged=True,
        )  # fmt: skip
        assert done.returncode == code, done.stdout
        return done.stdout

    def train(self, *words: str, code: int = 0) -> str:
        return self.type("train", *words, "--tune", "off", code=code)

    def run(self, name: str) -> RunFolder:
        return RunFolder(self.folder / "state" / "runs" / name)


@pytest.fixture
def bench(tmp_path: Path, tell: type[Tell], forked: ForkedCommands) -> Bench:
    return Bench(tmp_path, tell, forked)


@pytest.fixture
def first(once: Once, bench: Bench) -> None:
    """The run `first`, of one epoch, as if it had been trained in that folder."""

    def train(folder: Path) -> None:
        made = Bench(folder, bench.tell, bench.forked)
        made.train("my points.py", "--name", "first", "--epochs", "1")

    shutil.copytree(once("changed-file", train) / "state", bench.folder / "state")
    place = bench.run("first").header
    header = atomic_files.read_json(place, RunHeader)
    spec = msgspec.structs.replace(header.spec, file=str(bench.file))
    atomic_files.write_json(place, msgspec.structs.replace(header, spec=spec))


def test_mended_file_goes_on_and_loses_nothing(bench: Bench) -> None:
    bench.train("my points.py", "--name", "whole")
    bench.write(FAILS_LATE)
    said = bench.train("my points.py", "--name", "mended", "-s", "lr=0.01", code=1)
    assert "train --resume mended --changed" in said
    folder = bench.run("mended")
    assert read_run(folder).checkpoint_step == 12
    # Not mended yet, and without --changed: refused in plain words, and nothing lost.
    bench.write(FILE)
    refused = bench.train("--resume", "mended", code=2)
    assert "--resume mended --changed" in refused
    said = bench.train("--resume", "mended", "--changed")
    assert "-    assert len(CALLS) < 6, 'a mistake'" in said
    assert bench.tell.traces(folder) == bench.tell.traces(bench.run("whole"))
    [change] = bench.tell.events(folder, FileChanged)
    assert change.kept is not None and change.step == 12 and "+++" in change.diff
    assert (folder.path / change.kept).read_text(encoding="utf-8") == FAILS_LATE
    assert folder.experiment.read_text(encoding="utf-8") == FILE
    assert any("tensors of the model" in one for one in change.fits)
    shown = bench.type("show", "mended")
    assert change.kept in shown
    # From now on it is the run's own file.
    bench.train("--resume", "mended", "--epochs", "4")


@pytest.mark.usefixtures("first")
def test_run_keeps_the_text_it_goes_on_with_when_the_file_is_edited_meanwhile(
    bench: Bench,
) -> None:
    # The file is edited as soon as it was imported, before the run takes its text over.
    edits = "\nimport pathlib\npathlib.Path(__file__).write_text('raise SystemExit')\n"
    changed = FILE + edits
    bench.write(changed)
    bench.train("--resume", "first", "--changed", "--epochs", "2")
    folder = bench.run("first")
    assert folder.experiment.read_text(encoding="utf-8") == changed
    [change] = bench.tell.events(folder, FileChanged)
    assert "+import pathlib" in change.diff and "raise SystemExit" in change.diff


@pytest.mark.usefixtures("first")
def test_difference_may_be_longer_than_an_argument(bench: Bench) -> None:
    # Linux takes 128 KiB as one argument of a program, Windows 32 KiB as all of them.
    lines = "".join(f"# line {number} {'x' * 80}\n" for number in range(3000))
    bench.write(FILE + lines)
    bench.train("--resume", "first", "--changed", "--epochs", "2")
    [change] = bench.tell.events(bench.run("first"), FileChanged)
    assert change.diff.count("\n+# line") == 3000


@pytest.mark.usefixtures("first")
def test_changed_model_or_optimizer_is_refused_in_plain_words(bench: Bench) -> None:
    kept = bench.run("first").header.read_bytes()
    bench.write(FILE.replace("16", "20"))
    said = bench.train("--resume", "first", "--changed", "--epochs", "2", code=2)
    assert "does not fit its model" in said and "0.weight is (20, 6) now, (16, 6) before" in said
    bench.write(FILE.replace("AdamW(parameters, lr=lr)", "SGD(parameters, lr=lr)"))
    said = bench.train("--resume", "first", "--changed", "--epochs", "2", code=2)
    assert "does not fit its optimizer" in said and "--init first" in said
    # Nothing of it is in the run.
    assert bench.run("first").header.read_bytes() == kept
    assert read_run(bench.run("first")).status == "finished"
    bench.write(FILE)
    bench.train("--resume", "first", "--epochs", "2")


@pytest.mark.usefixtures("first")
def test_rate_and_metric_are_those_of_the_changed_file(bench: Bench) -> None:
    text = FILE.replace("lr=lr", "lr=lr / 10").replace('best="accuracy"', 'best="loss"')
    bench.write(text)
    bench.train("--resume", "first", "--changed", "--epochs", "2")
    folder = bench.run("first")
    [group] = bench.tell.state(folder)["optimizer"]["param_groups"]
    assert group["lr"] == pytest.approx(0.001 * 0.9**12)
    second = bench.tell.metrics(folder, Validated)[1]
    assert second.is_best and bench.tell.state(folder)["position"]["best_name"] == "loss"


@pytest.mark.usefixtures("first")
def test_unchanged_file_and_built_in_say_so(bench: Bench) -> None:
    said = bench.train("--resume", "first", "--changed", "--epochs", "2")
    assert "`--changed` has no effect" in said
    bench.train("digits", "--name", "second", "--epochs", "1")
    assert "is a built-in experiment, not a file" in bench.train(
        "--resume", "second", "--changed", "--epochs", "2", code=2
    )
    assert "name the run" in bench.train("my points.py", "--changed", code=2)


def test_init_takes_a_run_that_has_only_a_checkpoint(bench: Bench) -> None:
    # It fails in its first validation.
    bench.write(FAILS_LATE.replace("< 6", "< 3"))
    bench.train("my points.py", "--name", "broken", code=1)
    folder = bench.run("broken")
    assert not folder.weights.exists() and folder.checkpoint_steps() == [6]
    bench.write(FILE)
    bench.train("my points.py", "--name", "second", "--init", "broken", "--epochs", "1")
    assert (bench.run("second").path / "init.safetensors").is_file()
    bench.train("--resume", "second", "--epochs", "2")
