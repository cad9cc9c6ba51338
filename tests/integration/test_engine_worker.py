"""The worker as a process: it ends in good order, whatever asks it to."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
import torch
from support.busy_machine import wait_until

from flatout.engine.tensors.state_tree import pack
from flatout.engine.training.checkpoints import write_checkpoint
from flatout.engine.training.worker import main
from flatout.schema.experiment_spec import ExperimentSpec
from flatout.schema.machine_sample import MachineSample
from flatout.schema.run import RunHeader
from flatout.schema.run_lines import Finished, Started, Stopped
from flatout.system.store.run_folder import RunFolder, create_run, read_run
from flatout.system.store.sample_file import read_samples

if TYPE_CHECKING:
    from conftest import Tell

SRC = Path(__file__).resolve().parents[2] / "src"
SOURCE = """
import time, torch
from torch import nn
import flatout

def loss(model, batch):
    time.sleep(PAUSE)
    return nn.functional.mse_loss(model(batch[0]), batch[1])

def experiment(epochs: int = 1):
    rows = torch.arange(96.0).reshape(48, 2) / 96
    return flatout.Experiment(
        model=lambda: nn.Linear(2, 1), optimizer=lambda p: torch.optim.SGD(p, lr=0.01), loss=loss,
        train_data=lambda: (rows, rows[:, :1]), batch_size=8, epochs=epochs,
    )
"""
Begin = Callable[..., "Worker"]
Make = Callable[[str], RunFolder]


class Worker:
    """A worker on a run of its own; its output goes to worker.log, as the command line has it.

    start_s: how long it took to train, once that was waited for: about 2.5 s on an idle machine.
    """

    def __init__(self, folder: RunFolder, *arguments: str) -> None:
        self.folder = folder
        self._log = open(folder.log, "ab")
        self._began_s = time.monotonic()
        self.start_s = 0.0
        self.process = subprocess.Popen(
            [sys.executable, "-m", "flatout.engine.training.worker", str(folder.path), *arguments],
            env={**os.environ, "PYTHONPATH": str(SRC)},
            stdin=subprocess.PIPE, stdout=self._log, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def wait_for_steps(self) -> None:
        """Until it trains."""
        deadline = time.monotonic() + 180
        while time.monotonic() < deadline and self.process.poll() is None:
            if self.folder.metrics.exists() and self.folder.metrics.stat().st_size:
                self.start_s = time.monotonic() - self._began_s
                return
            time.sleep(0.02)
        raise AssertionError(self.folder.log.read_text())

    def end(self) -> tuple[int, float]:
        """Its exit code, and how many seconds it took to end."""
        began = time.monotonic()
        code = self.process.wait(timeout=180)
        return code, time.monotonic() - began

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._log.close()
        assert self.process.stdin is not None
        self.process.stdin.close()


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Begins a run with a worker; pause_s: how long each step takes."""
    workers = []

    def begun(*arguments: str, pause_s: float = 0.02, epochs: int = 1000) -> Worker:
        source = SOURCE.replace("PAUSE", str(pause_s))
        folder = make_run(tmp_path / str(len(workers)), source, epochs)
        workers.append(Worker(folder, *arguments))
        return workers[-1]

    yield begun
    for worker in workers:
        worker.close()


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Makes a run that is trained in this process."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield lambda source: make_run(tmp_path, source, 1)
    sys.modules.pop("lazy", None)


def make_run(place: Path, source: str, epochs: int) -> RunFolder:
    place.mkdir(exist_ok=True)
    path = place / "lazy.py"
    path.write_text(source)
    spec = ExperimentSpec(
        name="lazy", file=str(path), sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        parameters={"epochs": epochs}, fixed={"num_threads": 1, "device": "cpu"},
    )  # fmt: skip
    header = RunHeader(id="lazy-0001", created_at=0.0, flatout_version="0", python="", spec=spec)
    return create_run(header, place / "runs")


def test_worker_trains_to_the_end(begin: Begin, make: Make, tell: Tell) -> None:
    worker = begin(pause_s=0, epochs=3)
    assert worker.process.stdin is not None
    # Not attached: it continues after the command line has exited.
    worker.process.stdin.close()
    assert worker.end()[0] == 0, worker.folder.log.read_text()
    events = tell.events(worker.folder)
    [started] = [line for line in events if isinstance(line, Started)]
    assert started.pid == worker.process.pid
    assert (started.num_steps, started.steps_per_epoch, started.num_epochs) == (18, 6, 3)
    assert (started.num_samples, started.num_parameters, started.num_trained) == (48, 3, 3)
    assert {"torch", "python", "flatout", "cpu"} <= set(started.versions)
    assert isinstance(events[-1], Finished) and events[-1].num_samples_seen == 144
    assert (events[-1].peak_memory_bytes or 0) > 10**7
    assert worker.folder.weights.exists()
    assert worker.folder.log.read_text() == ""
    extend_in_this_process(worker.folder)


def extend_in_this_process(folder: RunFolder) -> None:
    """Goes on with it as the command line has it done, in less time."""
    change = json.dumps({"fixed": {"clip_norm": 1.0}, "epochs": 4})
    assert main([str(folder.path), "--change", change]) == 0
    run = read_run(folder)
    assert run.recipe is not None and run.recipe.clip_norm.value == 1.0
    assert run.step == 24 and run.status == "finished"
    assert main([str(folder.path)]) == 2
    assert read_run(folder).findings[-1].rule == "run-is-finished"


@pytest.mark.timing
@pytest.mark.parametrize("asks", ["stdin", "file", "signal"])
def test_worker_stops_in_good_order(begin: Begin, tell: Tell, asks: str) -> None:
    if asks == "signal" and sys.platform == "win32":
        pytest.skip("SIGTERM ends a process at once on Windows")
    worker = begin("--attached")
    worker.wait_for_steps()
    if asks == "stdin":
        assert worker.process.stdin is not None
        worker.process.stdin.close()
    elif asks == "file":
        worker.folder.request_stop()
    else:
        worker.process.send_signal(signal.SIGTERM)
    code, seconds = worker.end()
    stopped = tell.events(worker.folder)[-1]
    assert code == 0 and isinstance(stopped, Stopped)
    reasons = {"stdin": "the command line exited", "file": "asked to stop",
               "signal": "terminated"}  # fmt: skip
    assert stopped.reason == reasons[asks]
    assert tell.state(worker.folder)["position"]["step"] == stopped.step > 0
    assert not worker.folder.stop.exists() and not worker.folder.lock().is_taken()
    # The step ends, a checkpoint is written, Python ends: as quick as this machine is just now.
    last_s = stopped.at - tell.metrics(worker.folder)[-1].at
    assert last_s < max(1, worker.start_s / 3) and seconds < max(5, 2 * worker.start_s)
    assert read_run(worker.folder).status == "stopped"


def test_worker_ends_at_once_when_signalled_twice(begin: Begin, tell: Tell) -> None:
    if sys.platform == "win32":
        pytest.skip("SIGTERM ends a process at once on Windows")
    worker = begin(pause_s=600)
    wait_until(lambda: tell.events(worker.folder, Started))
    time.sleep(0.3)
    worker.process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    assert worker.process.poll() is None
    worker.process.send_signal(signal.SIGTERM)
    # The step would take ten minutes.
    code, seconds = worker.end()
    assert code == -signal.SIGTERM and seconds < 60
    assert read_run(worker.folder).status == "interrupted"


def test_failure_has_its_exit_code_and_traceback(
    make: Make, tell: Tell, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = make(SOURCE.replace("time.sleep(PAUSE)", "raise ValueError('colour')"))
    assert main([str(folder.path)]) == 1
    assert tell.failure(folder).rule == "experiment-raised"
    error = capfd.readouterr().err
    assert "Traceback" in error and "lazy.py" in error and "colour" in error


def test_our_own_fault_has_its_exit_code_and_traceback(
    make: Make, tell: Tell, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = make(SOURCE.replace("PAUSE", "0"))
    # A checkpoint that is whole, and yet none that the engine has written.
    write_checkpoint(folder, 3, pack({"position": {"epoch": 0, "step": 3}, "one": torch.zeros(1)}))
    assert main([str(folder.path)]) == 3
    finding = tell.failure(folder)
    assert finding.rule == "internal-error" and "worker.log" in (finding.because or "")
    assert "Traceback" in capfd.readouterr().err


def test_second_worker_is_refused(
    make: Make, tell: Tell, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = make(SOURCE)
    lock = folder.lock()
    assert lock.acquire()
    try:
        assert main([str(folder.path)]) == 2
    finally:
        lock.release()
    assert tell.events(folder) == []
    assert "being trained" in capfd.readouterr().err


def test_worker_without_a_run_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) in (1, 2)
    assert "run.json" in capfd.readouterr().err


def test_recorder_of_samples_ends_with_its_worker(begin: Begin) -> None:
    # Both at once: a recorder begins some seconds after its worker.
    workers = {is_killed: begin() for is_killed in (False, True)}
    for worker in workers.values():
        worker.wait_for_steps()
    for is_killed, worker in workers.items():
        samples = wait_for_samples(worker.folder, 120)
        assert samples[0].host.memory_bytes
        (recorder,) = psutil.Process(worker.process.pid).children()
        assert "flatout.monitor.recorder" in recorder.cmdline()
        if is_killed:
            worker.process.kill()
        else:
            worker.folder.request_stop()
        code, _ = worker.end()
        assert (code == 0) != is_killed
        psutil.wait_procs([recorder], timeout=120)
        assert not recorder.is_running() or recorder.status() == psutil.STATUS_ZOMBIE
        assert worker.folder.log.read_text() == ""


def wait_for_samples(folder: RunFolder, limit_s: float) -> list[MachineSample]:
    until_s = time.monotonic() + limit_s
    while time.monotonic() < until_s:
        samples = list(read_samples(folder.samples))
        if samples:
            return samples
        time.sleep(0.1)
    raise AssertionError("no sample was recorded")
