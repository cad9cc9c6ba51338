"""Trials whose two contestants are processes of their own."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from flatout.engine.runtime.stop_signals import StopRequest
from flatout.engine.tuner import trial_process
from flatout.engine.tuner.trial_process import Terms, TrialContext, measured_in_fresh_processes
from flatout.schema.experiment_spec import ExperimentSpec
from flatout.schema.run import RunHeader
from flatout.schema.tuning import Candidate, Result, Trial
from flatout.system import atomic_files
from flatout.system.store.run_folder import RunFolder

EXPERIMENT = """
import os
import subprocess
import sys
import time
from pathlib import Path

import flatout
import torch

HERE = Path(__file__).parent

def loss(model, batch):
    # What an experiment prints must not get between the answers.
    print("a loss")
    if torch.get_num_threads() == 1 and (HERE / "deadly").exists():
        os._exit(7)
    if torch.get_num_threads() == 1 and (HERE / "refuses").exists():
        raise ValueError("one thread is too few")
    if torch.get_num_threads() == 1 and (HERE / "sleeps").exists():
        time.sleep(60)
    if (HERE / "starts").exists() and not (HERE / f"{os.getpid()}.seen").exists():
        # As a program that decodes videos does: it reads whatever comes.
        subprocess.run([sys.executable, "-c", "import sys; sys.stdin.read()"], check=True)
    with open(HERE / f"{os.getpid()}.seen", "w") as file:
        file.write(os.environ.get("GOMP_SPINCOUNT", "not set"))
    return model(batch[0]).square().mean()

class Rows:
    def __len__(self):
        return 256

    def __getitem__(self, index):
        return (torch.full((64,), 1.0 * index),)

def experiment():
    return flatout.Experiment(
        model=lambda: torch.nn.Linear(64, 64),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        loss=loss,
        train_data=Rows if (HERE / "rows").exists() else lambda: (torch.ones(256, 64),),
        batch_size=32,
        epochs=1,
    )
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a run whose worker has been given an environment by flatout."""
    monkeypatch.setenv("GOMP_SPINCOUNT", "1234")
    monkeypatch.setenv("FLATOUT_ADDED", "GOMP_SPINCOUNT")
    file = tmp_path / "small.py"
    file.write_text(EXPERIMENT)
    spec = ExperimentSpec(
        name="small", file=str(file), sha256=hashlib.sha256(file.read_bytes()).hexdigest()
    )
    header = RunHeader(id="x", created_at=0.0, flatout_version="0", python="", spec=spec)
    atomic_files.write_json(RunFolder(tmp_path).header, header)
    return tmp_path


def measured(
    folder: Path,
    changes: dict[str, Any],
    num_processes: int = 1,
    part_size: int | None = None,
    usual_s: float = 12.0,
    request: StopRequest | None = None,
) -> Result:
    candidate = Candidate(name="tried", axis="threads", changes=changes, why="")
    asked = Trial(
        stage="screen", candidate=candidate, incumbent=None, changes=changes,
        num_processes=num_processes,
    )  # fmt: skip
    terms = Terms(device_name=None, fixed={}, part_size=part_size)
    surroundings = TrialContext(
        folder=folder, usual_s=usual_s, terms=terms, request=request or StopRequest()
    )
    return measured_in_fresh_processes(asked, 0.3, surroundings)


def test_no_pair_is_begun_when_somebody_has_asked_to_stop(folder: Path) -> None:
    request = StopRequest()
    request.make("asked to stop")
    with pytest.raises(KeyboardInterrupt):
        measured(folder, {"num_threads": 1}, num_processes=2, request=request)
    assert not list(folder.glob("*.seen"))


def test_each_contestant_has_a_process_and_the_plain_loop_a_plain_environment(
    folder: Path,
) -> None:
    result = measured(folder, {"num_threads": 1}, num_processes=2)
    assert result.problem is None
    assert result.effect == "1 thread"
    assert result.speedup is not None and len(result.by_process) == 2
    seen = {path.stem: path.read_text() for path in folder.glob("*.seen")}
    assert sorted(seen.values()) == ["1234", "1234", "not set", "not set"]
    assert str(os.getpid()) not in seen


def test_a_cache_is_measured_beside_a_loop_over_the_same_part(folder: Path) -> None:
    (folder / "rows").touch()
    result = measured(folder, {"data_path": "cached"}, part_size=64)
    assert result.problem is None and result.speedup is not None
    assert result.effect == "no sample was read; all came from the cache"


def test_a_candidate_that_takes_its_process_along_has_lost(folder: Path) -> None:
    (folder / "deadly").touch()
    result = measured(folder, {"num_threads": 1})
    assert result.speedup is None and result.problem is not None
    assert result.problem.rule == "trial-died"
    assert result.problem.because == "exited with code 7"


def test_what_an_experiment_starts_does_not_read_what_is_asked(folder: Path) -> None:
    (folder / "starts").touch()
    assert measured(folder, {"num_threads": 1}).problem is None


def test_a_candidate_that_takes_much_too_long_is_ended_and_reported_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "sleeps").touch()
    monkeypatch.setattr(trial_process, "_LEAST_PATIENCE_S", 0.0)
    result = measured(folder, {"num_threads": 1}, usual_s=1.0)
    assert result.problem is not None and result.problem.rule == "trial-died"
    assert result.problem.because == "it did not finish within 5 s, and was killed"


def test_a_process_that_cannot_be_started_is_a_candidate_that_lost(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(folder / "no python"))
    result = measured(folder, {"num_threads": 1})
    assert result.problem is not None and result.problem.rule == "trial-died"
    assert str(result.problem.because).startswith("the process could not be started")


def test_no_worker_is_left_behind(folder: Path) -> None:
    (folder / "rows").touch()
    result = measured(folder, {"loader_workers": 1, "loader_persistent": True})
    assert result.effect is not None and result.effect.startswith("1 worker alive")
    lines = [
        " ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])
    ]
    assert not [line for line in lines if str(folder) in line]


def test_what_a_candidate_raises_is_reported_as_it_is(folder: Path) -> None:
    (folder / "refuses").touch()
    result = measured(folder, {"num_threads": 1})
    assert result.problem is not None and result.problem.rule == "experiment-raised"
    assert "one thread is too few" in result.problem.problem


def test_a_setting_that_does_nothing_is_not_measured(folder: Path) -> None:
    result = measured(folder, {"memory_format": "channels_last"})
    assert result.problem is not None and result.problem.rule == "setting-without-effect"
    assert "memory_format=channels_last" in result.problem.problem
