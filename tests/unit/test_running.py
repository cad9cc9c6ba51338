"""Running runs as `flatout top` reads them, and the process that records samples for a run."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.busy_machine import wait_until

from flatout.monitor import recorder
from flatout.runs import top
from flatout.runs.running import RunningRuns
from flatout.schema.experiment_spec import ExperimentSpec
from flatout.schema.finding import Finding
from flatout.schema.machine_sample import GpuProcess, GpuSample
from flatout.schema.run import RunHeader
from flatout.schema.run_lines import Progress, Started
from flatout.schema.top_frame import RunningRun, TopProcess
from flatout.system import atomic_files, run_recorder
from flatout.system.process_reader import ProcessReader
from flatout.system.run_recorder import RunRecorder
from flatout.system.store.run_folder import RunFolder, create_run
from flatout.system.store.sample_file import read_samples

STARTED = Started(
    at=100.0, step=0, pid=17, num_steps=1000, num_epochs=10, steps_per_epoch=100,
    num_parameters=5, num_samples=6400, unit="images",
)  # fmt: skip
FINDING = Finding(rule="gpu-idle", severity="warning", problem="the GPU is idle")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunFolder]:
    """A run that has started, and whose lock is held."""
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path))
    header = RunHeader(
        id="a-0001", created_at=0.0, flatout_version="1", python="", spec=ExperimentSpec(name="a")
    )
    made = create_run(header)
    append(made.events, STARTED)
    lock = made.lock()
    assert lock.acquire()
    yield made
    lock.release()


def append(path: Path, *lines: Any) -> None:
    file = atomic_files.Lines(path)
    for line in lines:
        file.append(line)
    file.close()


def progress(at: float, step: int, rate: float | None = 640.0) -> Progress:
    return Progress(
        at=at, step=step, epoch=0, loss=0.5, samples_per_s=rate, learning_rate=0.1,
        memory_bytes=7, split_s={},
    )  # fmt: skip


def test_running_run_is_shown_with_its_pace(folder: RunFolder) -> None:
    runs = RunningRuns()
    (run,) = runs.take()
    assert (run.id, run.pid, run.step, run.loss) == ("a-0001", None, 0, None)
    assert "another machine" in run.unread["pid"]
    assert run.unread["loss"] == "it has not reported any step yet"
    append(folder.metrics, progress(110.0, 100))
    (run,) = runs.take()
    # By the rate of the only line: 64 samples a step.
    assert (run.step, run.samples_per_s, run.left_s, run.unit) == (100, 640.0, 90.0, "images")
    append(folder.metrics, progress(120.0, 150))
    (run,) = runs.take()
    # By what two lines show, validations and all.
    assert run.left_s == pytest.approx(850 / 5)
    assert run.share is None and "FLOPs" in run.unread["share"]


def test_process_is_shown_where_it_trains_the_run_and_not_where_it_has_its_number(
    folder: RunFolder,
) -> None:
    number = msgspec.structs.replace(STARTED, at=time.time())
    append(folder.events, msgspec.structs.replace(number, pid=os.getpid()))
    # This process holds its lock, as a notebook does.
    assert RunningRuns().take()[0].pid == os.getpid()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        append(folder.events, msgspec.structs.replace(number, at=time.time(), pid=other.pid))
        is_windows = sys.platform == "win32"
        assert RunningRuns().take()[0].pid == (other.pid if is_windows else None)
        other.kill()
    argv = [sys.executable, "-c", "input()", str(folder.path)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE) as worker:
        append(folder.events, msgspec.structs.replace(number, at=time.time(), pid=worker.pid))
        assert RunningRuns().take()[0].pid == worker.pid
        worker.kill()


def test_lines_from_before_a_resume_are_not_its_pace(folder: RunFolder) -> None:
    append(folder.metrics, progress(90.0, 400))
    (run,) = RunningRuns().take()
    assert run.samples_per_s is None and run.left_s is None


def test_run_that_is_over_is_no_longer_shown(folder: RunFolder, tmp_path: Path) -> None:
    runs = RunningRuns()
    assert len(runs.take()) == 1
    folder.path.rename(tmp_path / "elsewhere")
    assert runs.take() == ()


def test_damaged_run_is_shown_with_what_is_wrong(folder: RunFolder) -> None:
    folder.events.write_bytes(b'{"kind": "nonsense"}\n')
    (run,) = RunningRuns().take()
    assert "nonsense" in run.unread["step"]


def test_process_has_what_gpus_and_runs_report_about_it() -> None:
    gpus = (
        GpuSample(index=0, processes=(GpuProcess(pid=1, used_bytes=5),)),
        GpuSample(index=1, processes=(GpuProcess(pid=1, used_bytes=6), GpuProcess(pid=2))),
        GpuSample(index=2, unread={"processes": "NVML: Not Supported"}),
    )
    run = RunningRun(id="a", folder="/a", pid=3, device="cuda:2", memory_bytes=9)
    both, hidden, of_run, other = (
        top._with_gpus(TopProcess(pid=pid), gpus, (run,)) for pid in (1, 2, 3, 4)
    )
    assert (both.gpus, both.gpu_bytes) == ((0, 1), 11)
    assert (hidden.gpus, hidden.gpu_bytes) == ((1,), None) and hidden.unread["gpu_bytes"]
    # Where the platform does not list it, the run itself says what it holds.
    assert (of_run.run, of_run.gpu_bytes) == ("a", 9)
    assert other.gpu_bytes is None and other.unread["gpu_bytes"] == "NVML: Not Supported"


def test_process_that_is_gone_has_a_reason() -> None:
    reader = ProcessReader()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        (first,) = reader.take([child.pid])
        (second,) = reader.take([child.pid])
        assert first.utilization is None and second.utilization is not None
        assert second.is_mine and second.memory_bytes
        child.kill()
        child.wait()
        (gone,) = reader.take([child.pid])
    assert gone.name is None and "ended" in gone.unread["name"]


@pytest.mark.skipif(sys.platform == "win32", reason="needs a shell script")
def test_findings_of_the_recorder_reach_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_recorder, "_STARTS_AFTER_S", 0.05)
    script = tmp_path / "python"
    line = msgspec.json.encode(FINDING).decode()
    script.write_text(f"#!/bin/sh\necho 'no JSON'\necho '{line}'\ncat >/dev/null\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    found: list[Finding] = []

    def has_found() -> bool:
        found.extend(running.findings())
        return bool(found)

    with RunRecorder(tmp_path) as running:
        wait_until(has_found)
    assert found == [FINDING]
    assert running._process is not None and running._process.returncode == 0


def test_short_run_pays_for_no_process(tmp_path: Path) -> None:
    with RunRecorder(tmp_path) as running:
        assert running.findings() == []
    assert running._process is None and not list(tmp_path.iterdir())


def test_recorder_that_cannot_start_or_dies_disturbs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_recorder, "_STARTS_AFTER_S", 0.01)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "missing"))
    with RunRecorder(tmp_path) as running:
        running._thread.join(120)
        assert running.findings() == []


def test_run_goes_on_where_no_thread_can_be_started(tmp_path: Path) -> None:
    running = RunRecorder(tmp_path)
    # One that was started already cannot be started.
    running._thread.start()
    with running:
        assert running.findings() == []


def test_recorder_writes_samples_until_its_stdin_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(recorder.__file__).parents[2]))
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "flatout.monitor.recorder", str(tmp_path)],
        stdin=subprocess.PIPE,
    )
    path = RunFolder(tmp_path).samples
    wait_until(lambda: any(read_samples(path)))
    assert child.stdin is not None
    child.stdin.close()
    assert child.wait(120) == 0
