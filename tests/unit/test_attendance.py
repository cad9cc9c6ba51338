"""A worker that was started here: what its end is taken for."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from flatout.nouns.experiment_spec import ExperimentSpec
from flatout.nouns.machine import Cpu, Host, Machine, Memory
from flatout.nouns.run import RunHeader
from flatout.system import child, runs
from flatout.system.attendance import Attendance, conclude, follow
from flatout.system.interrupts import Interrupts
from flatout.system.tail import Tail, wait_until_free

MACHINE = Machine(
    read_at="", host=Host(os="linux", python="3.11.7"), cpu=Cpu(num_threads=2), memory=Memory(),
    python="",
)  # fmt: skip


def attend(python: str, parent: Path, **parameters: Any) -> Attendance:
    """A worker, just started on a new run."""
    header = RunHeader(
        id="mine-0001", created_at=0.0, flatout_version="0.1.0", python=python,
        spec=ExperimentSpec(name="mine", parameters=parameters),
    )  # fmt: skip
    folder = runs.create_run(header, parent)
    worker = child.start_worker(python, folder, change=None, is_attached=True)
    return Attendance(folder=folder, machine=MACHINE, worker=worker, tail=Tail(folder))


@pytest.fixture(autouse=True)
def no_python_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake engine stands in the environment; PYTHONPATH would put the real one before it."""
    monkeypatch.delenv("PYTHONPATH", raising=False)


@pytest.mark.skipif(sys.platform == "win32", reason="the fake engine's lock is another there")
def test_conclude_when_somebody_else_was_quicker(fake_python: str, tmp_path: Path) -> None:
    folder = runs.create_run(
        RunHeader(
            id="mine-0001", created_at=0.0, flatout_version="0.1.0", python=fake_python,
            spec=ExperimentSpec(name="mine"),
        ),
        tmp_path,
    )  # fmt: skip
    lock = folder.lock()
    assert lock.acquire()
    worker = child.start_worker(fake_python, folder, change=None, is_attached=True)
    loser = Attendance(folder=folder, machine=MACHINE, worker=worker, tail=Tail(folder))
    list(follow(loser, Interrupts()))
    outcome = conclude(loser)
    lock.release()
    assert outcome.exit_code == 2
    assert outcome.finding is not None and outcome.finding.rule == "run-in-use"


def test_follow_asks_again_when_an_old_request_is_cleared(fake_python: str, tmp_path: Path) -> None:
    attendance = attend(fake_python, tmp_path, steps=2000, pause=0.02)
    attendance.folder.request_stop()
    interrupts = Interrupts()
    # Pressed while the worker is only beginning, and an old request lies there.
    interrupts.count = 1
    list(follow(attendance, interrupts))
    outcome = conclude(attendance)
    assert (outcome.run.status, outcome.exit_code) == ("stopped", 0)
    assert outcome.run.ending_reason == "asked to"
    assert outcome.run.step < 100


def test_wait_until_free_when_interrupted(tmp_path: Path) -> None:
    folder = runs.RunFolder(tmp_path)
    lock = folder.lock()
    assert lock.acquire()
    interrupts = Interrupts()
    assert not wait_until_free(folder, 0.0, interrupts)
    interrupts.count = 1
    with pytest.raises(KeyboardInterrupt):
        wait_until_free(folder, 60.0, interrupts)
    lock.release()
    assert wait_until_free(folder, 60.0, interrupts)
