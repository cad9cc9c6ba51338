"""A person's mistake is told as theirs, with the line: see tests/cases/mistakes.

The first lines of a case are TOML, commented out. lot: where it comes from. words: what must be in
the problem, the cause or the fix. rule: of the bad news, where it matters. ask: `predict` uses the
run afterwards. file: the name of the case's copy. works: it is no mistake. HERE marks the line
that must be named and shown.
"""

from __future__ import annotations

import importlib
import io
import linecache
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy
import pytest
from support.forked_commands import ForkedCommands

from flatout.engine import Experiment, train, tune
from flatout.engine.predict.worker import ReplyWriter, handle
from flatout.engine.runtime.stop_signals import StopRequest
from flatout.engine.session.load_experiment import load_experiment
from flatout.engine.training.api import train_in
from flatout.engine.training.trainer import TrainTask
from flatout.errors import FlatoutError, RunFailed, UsageError
from flatout.runs.start import specify
from flatout.schema.change import Change
from flatout.schema.predict_protocol import AnyReply, PredictJob, Refused
from flatout.schema.run import RunHeader
from flatout.schema.train_request import TrainRequest
from flatout.system.json_process import JsonLines
from flatout.system.store.failed_start import failed_start_folder
from flatout.system.store.run_folder import create_run, free_id, run_paths

if TYPE_CHECKING:
    from conftest import Lab

SRC = str(Path(__file__).resolve().parents[2] / "src")
CASES = Path(__file__).parents[1] / "cases" / "mistakes"
MARK = "  # HERE"


@dataclass(frozen=True)
class Case:
    """An experiment with a mistake, and what is to be said of it."""

    path: Path
    expected: dict[str, Any]

    @property
    def marked(self) -> list[tuple[int, str]]:
        """The lines where the mistake is: numbers and what is written there."""
        lines = self.path.read_text(encoding="utf-8").splitlines()
        return [
            (number, line.removesuffix(MARK).strip())
            for number, line in enumerate(lines, start=1)
            if line.endswith(MARK)
        ]


def read_case(path: Path) -> Case:
    head = path.read_text(encoding="utf-8").partition("\n\n")[0]
    text = "\n".join(line.removeprefix("# ") for line in head.splitlines())
    return Case(path, tomllib.loads(text))


# What is no Python has another ending, and a `file`.
ALL = [read_case(path) for path in sorted(CASES.iterdir()) if path.suffix in (".py", ".txt")]


@pytest.fixture
def as_in_a_new_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for a case's file, which is not imported afterwards."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    folder = tmp_path / "mine"
    folder.mkdir()
    monkeypatch.chdir(folder)
    yield folder
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(folder)):
            del sys.modules[name]
    importlib.invalidate_caches()


def reported_of(case: Case, file: Path) -> FlatoutError:
    """The bad news that a training of the case ends with, or a prediction after it."""
    with pytest.raises(FlatoutError) as caught:
        trained(case, file)
    return caught.value


def trained(case: Case, file: Path) -> None:
    spec = specify(TrainRequest(experiment=str(file), uses=("num_threads=1",)))
    folder = create_run(
        RunHeader(id=free_id("case"), created_at=0.0, flatout_version="0", python="", spec=spec)
    )
    task = TrainTask(folder, spec, Change(), StopRequest())
    train_in(task, lambda: load_experiment(spec))
    if case.expected.get("ask") == "predict":
        predicted(folder.path, file.parent)


def predicted(folder: Path, here: Path) -> None:
    """Asks a run as `flatout predict` does."""
    numpy.save(here / "new.npy", numpy.zeros((3, 6), dtype="float32"))
    stream = io.BytesIO()
    handle(
        PredictJob(verb="predict", folder=str(folder), inputs=("new.npy",)),
        ReplyWriter(JsonLines(stream)),
    )
    lines = [msgspec.json.decode(line, type=AnyReply) for line in stream.getvalue().splitlines()]
    for line in lines:
        if isinstance(line, Refused):
            reported = line.finding
            fix = reported.fixes[0].text
            raise RunFailed(reported.rule, reported.problem, because=reported.because, fix=fix)


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.path.stem)
def test_mistake_is_reported(case: Case, lab: Lab, as_in_a_new_process: Path) -> None:
    file = as_in_a_new_process / case.expected.get("file", case.path.name)
    shutil.copy(case.path, file)
    if case.expected.get("works"):
        trained(case, file)
        return
    news = reported_of(case, file)
    text = str(news)
    assert news.exit_code in (1, 2) and news.rule != "internal-error"
    assert [word for word in case.expected["words"] if word not in text] == [], text
    assert news.rule == case.expected.get("rule", news.rule)
    for number, line in case.marked:
        assert f"{file.name}:{number}" in text and line[:60] in text, text


def experiment() -> Experiment:
    raise AssertionError("it is not called")


@pytest.mark.parametrize("verb", [train, tune], ids=["train", "tune"])
@pytest.mark.parametrize(
    ("given", "words"),
    [
        (experiment, ["the function `experiment`", "(experiment())"]),
        (Experiment, ["the class Experiment", "Experiment(model="]),
        ("digits", ["'digits'", "flatout train digits"]),
        (None, ["None"]),
    ],
    ids=["function", "class", "name", "none"],
)
def test_what_is_no_experiment_is_refused(
    lab: Lab, verb: Any, given: Any, words: list[str]
) -> None:
    with pytest.raises(UsageError) as caught:
        verb(given)
    assert caught.value.rule == "bad-experiment"
    assert [word for word in words if word not in str(caught.value)] == []
    assert not run_paths()


def test_no_run_is_left_when_a_start_in_a_notebook_fails(lab: Lab, plain: Any) -> None:
    def loss(model: Any, batch: Any) -> Any:
        raise ValueError("no loss")

    with pytest.raises(RunFailed):
        train(plain(loss=loss), is_quiet=True)
    assert not run_paths() and (failed_start_folder() / "run.json").is_file()


def test_run_is_kept_when_it_fails_later(lab: Lab, plain: Any) -> None:
    calls = 0

    def loss(model: Any, batch: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise ValueError("no loss")
        return plain().loss(model, batch)

    with pytest.raises(RunFailed):
        train(plain(loss=loss), is_quiet=True)
    assert len(run_paths()) == 1 and not failed_start_folder().exists()


def test_line_of_a_notebook_s_cell_is_shown() -> None:
    """A cell has no file; IPython gives its text to `linecache`, under a name like this."""
    name, text = "/tmp/ipykernel_7/42.py", "experiment = Experiment(\n    model=3,\n)\n"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    given = {"optimizer": len, "train_data": len, "batch_size": 1}
    text = text.replace("model=3,", "model=3, **given,")
    with pytest.raises(UsageError) as caught:
        exec(compile(text, name, "exec"), {"Experiment": Experiment, "given": given})
    assert "42.py:2: model=3," in str(caught.value)


@pytest.mark.parametrize("name", ["instance", "exits", "uneven", "shapes_wrong", "typo_field"])
def test_mistake_is_reported_by_the_command_line(
    name: str, tmp_path: Path, forked: ForkedCommands
) -> None:
    case = read_case(CASES / f"{name}.py")
    shutil.copy(case.path, tmp_path)
    state = {
        **os.environ, "FLATOUT_STATE": str(tmp_path / "state"), "COLUMNS": "300",
        "PYTHONPATH": SRC,
    }  # fmt: skip

    def flatout(*arguments: str) -> subprocess.CompletedProcess[str]:
        return forked.run(arguments, environment=state, folder=tmp_path)

    done = flatout("train", case.path.name)
    assert done.returncode in (1, 2), done.stderr
    assert [word for word in case.expected["words"] if word not in done.stderr] == []
    assert "flatout itself" not in done.stderr and "Traceback" not in done.stderr
    for number, line in case.marked:
        assert f"{name}.py:{number}" in done.stderr and line[:60] in done.stderr
    assert not list((tmp_path / "state" / "runs").glob("[!.]*"))
    assert f"of {name}: its error and its worker.log" in flatout("explain").stdout
