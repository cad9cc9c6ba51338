"""Runs that train, found and read from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flatout.monitor.api import MonitorRequest, _Session
from flatout.monitor.recorder import findings
from flatout.schema.alarm import RankProgress
from flatout.schema.machine_sample import HostSample, MachineSample
from flatout.schema.run_lines import Progress, Started
from flatout.system.alarm_delivery import AlarmDelivery
from flatout.system.atomic_files import Lines
from flatout.system.machine_sampler import MachineSampler
from flatout.system.store import run_finder
from flatout.system.store.daily_files import DailyFiles
from flatout.system.store.run_finder import RunFinder
from flatout.system.store.run_folder import RunFolder
from flatout.system.store.run_watch import RunWatch
from flatout.system.worker_watch import worker_sample


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path))
    monkeypatch.setattr(run_finder, "LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(run_finder, "_LOOK_SHARE", float("inf"))
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"


def new_run(runs: Path, name: str = "a-0001") -> RunFolder:
    """A run's folder with a header."""
    (runs / name).mkdir()
    (runs / name / "run.json").write_text("{}")
    return RunFolder(runs / name)


def started(pid: int, num_ranks: int = 1) -> Started:
    return Started(
        at=time.time(), step=0, pid=pid, num_steps=None, num_epochs=1, steps_per_epoch=10,
        num_parameters=1, num_samples=10, num_ranks=num_ranks,
    )  # fmt: skip


def progress(step: int) -> Progress:
    return Progress(
        at=time.time(), step=step, epoch=0, loss=1.0, samples_per_s=5.0, learning_rate=0.1,
        memory_bytes=None, split_s={"data": 1.0},
    )  # fmt: skip


def test_a_run_that_could_not_be_looked_at_is_looked_at_again(runs: Path) -> None:
    folder, answers = new_run(runs), iter([OSError("stale file handle"), True])

    def is_used(asked: RunFolder) -> bool:
        answer = next(answers)
        if isinstance(answer, OSError):
            raise answer
        return answer

    finder = RunFinder(is_used)
    assert finder.take([]) == []
    assert [found.path for found in finder.take([])] == [folder.path]


def test_a_slow_look_does_not_hide_runs_for_long(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_finder, "_LOOK_SHARE", 0.005)
    times = iter([0.0, 60.0])
    monkeypatch.setattr(run_finder, "elapsed_s", lambda: next(times))
    new_run(runs)
    finder = RunFinder(lambda folder: True)
    # It took a minute, as on a disk that did not respond.
    assert len(finder.take([])) == 1
    assert finder._next_s == 15.0


def test_a_run_is_found_once_it_trains_and_kept_after_its_end(runs: Path) -> None:
    folder, watch = new_run(runs), RunWatch()
    assert watch.take() == []
    lock = folder.lock()
    assert lock.acquire()
    Lines(folder.events).append(started(os.getpid()))
    Lines(folder.metrics).append(progress(3))
    found = watch.take()
    assert [reading.is_in_use for reading in found] == [True]
    assert [type(line).__name__ for line in found[0].lines] == ["Started", "Progress"]
    worker = found[0].worker
    assert worker is not None and worker.pid == os.getpid() and not worker.is_stopped
    Lines(folder.metrics).append(progress(4))
    lock.release()
    found = watch.take()
    assert [(reading.is_in_use, len(reading.lines)) for reading in found] == [(False, 1)]


@pytest.mark.skipif(sys.platform == "win32", reason="any Python may be a notebook there")
def test_a_process_with_the_number_of_a_worker_elsewhere_is_not_watched(runs: Path) -> None:
    folder, watch = new_run(runs), RunWatch()
    assert folder.lock().acquire()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        Lines(folder.events).append(started(other.pid))
        assert watch.take()[0].worker is None
        other.kill()


def test_a_run_that_is_removed_or_damaged_is_left_out(runs: Path) -> None:
    folder, watch = new_run(runs), RunWatch()
    assert folder.lock().acquire()
    assert len(watch.take()) == 1
    folder.events.write_text("no JSON\n")
    assert watch.take() == []
    assert watch.take() == []


def test_a_run_that_could_not_be_read_for_a_moment_is_watched_again(runs: Path) -> None:
    folder, watch = new_run(runs), RunWatch()
    assert folder.lock().acquire()
    Lines(folder.events).append(started(os.getpid()))
    assert len(watch.take()) == 1
    whole, at = folder.events.read_bytes(), folder.events.stat().st_mtime_ns
    folder.events.unlink()
    folder.events.mkdir()
    os.utime(folder.events, ns=(at, at))
    assert watch.take() == []
    folder.events.rmdir()
    folder.events.write_bytes(whole)
    os.utime(folder.events, ns=(at, at))
    assert len(watch.take()) == 1


def test_an_idle_run_is_looked_at_again_only_when_its_events_were_written(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, asked = new_run(runs), list[Path]()

    def is_used(one: RunFolder) -> bool:
        asked.append(one.path)
        return len(asked) > 1

    Lines(folder.events).append(started(1))
    finder = RunFinder(is_used)
    assert finder.take(()) == finder.take(()) == []
    assert asked == [folder.path]
    os.utime(folder.events, ns=(1, 1))
    assert [one.path for one in finder.take(())] == [folder.path]
    # Known runs are not looked at; and no run is, until it is time again.
    assert finder.take((folder.path,)) == []
    monkeypatch.setattr(run_finder, "LOOK_EVERY_S", 3600.0)
    assert len(finder.take(())) == 1
    assert finder.take(()) == []
    assert len(asked) == 3


def test_lines_of_other_ranks_are_read(runs: Path) -> None:
    folder, watch = new_run(runs), RunWatch()
    assert folder.lock().acquire()
    Lines(folder.events).append(started(os.getpid(), num_ranks=2))
    line = RankProgress(at=1.0, rank=1, split_s={"exchange": 2.0})
    Lines(folder.rank_times(1)).append(line)
    assert watch.take()[0].ranks == [line]
    assert watch.take()[0].ranks == []


def test_a_younger_process_of_the_same_number_is_not_the_worker() -> None:
    assert worker_sample(os.getpid(), time.time()) is not None
    assert worker_sample(os.getpid(), 1000.0) is None
    assert worker_sample(2**22 + 5, time.time()) is None


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGSTOP")
def test_a_stopped_worker_is_seen_as_such() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        process.send_signal(signal.SIGSTOP)
        until = time.monotonic() + 60
        while time.monotonic() < until:
            sample = worker_sample(process.pid, time.time())
            assert sample is not None
            if sample.is_stopped:
                break
        assert sample is not None and sample.is_stopped
    finally:
        process.kill()
        process.wait()


def test_a_recorder_reports_what_it_finds(runs: Path) -> None:
    folder = new_run(runs)
    assert folder.lock().acquire()
    Lines(folder.events).append(started(os.getpid()))
    at = time.time()
    from flatout.schema.machine_sample import GpuSample

    gpu = GpuSample(index=0, xid=79)
    samples = [
        MachineSample(at=at + second, host=HostSample(), gpus=(gpu,), source="nvml")
        for second in range(3)
    ]
    assert [finding.rule for finding in findings(folder, samples)] == ["gpu-xid"]


def test_samples_that_cannot_be_stored_are_reported_once(tmp_path: Path, runs: Path) -> None:
    folder = tmp_path / "monitor"
    with (
        MachineSampler("none") as sampler,
        DailyFiles(folder, days=2, keep_bytes=10**6) as files,
        AlarmDelivery() as delivery,
    ):
        session = _Session(MonitorRequest(), sampler, files, delivery)
        assert session.tick().problems == []
        day = next(folder.glob("*.jsonl"))
        files.__exit__()
        day.unlink()
        day.mkdir()
        problems = [session.tick().problems for _ in range(3)]
        day.rmdir()
        assert session.tick().problems == []
    assert [len(one) for one in problems] == [1, 0, 0]
    assert day.is_file()
