"""Ranks of which one has ended: how long the others may go on, and what the launcher then does."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flatout.engine.launch import local
from flatout.engine.launch.job import Lifeline, RankJob
from flatout.schema.experiment_spec import ExperimentSpec
from flatout.schema.placement import RANK_DIED
from flatout.schema.run import RunHeader
from flatout.schema.run_lines import Event, Failed
from flatout.system import atomic_files, clock
from flatout.system.store import shutdown_grace
from flatout.system.store.run_claim import RunClaim
from flatout.system.store.run_folder import RunFolder, create_run
from flatout.system.store.shutdown_grace import ShutdownGrace

SRC = Path(__file__).resolve().parents[2] / "src"
# What rank 0 does until it has written its checkpoint; another rank fails meanwhile.
WRITES = """
import os, sys, time
from pathlib import Path
from flatout.system.store.run_claim import RunClaim
from flatout.system.store.run_folder import RunFolder
if os.environ["RANK"] == "1":
    while not Path("writing").exists():
        time.sleep(0.02)
    sys.exit(3)
folder = RunFolder(Path.cwd())
assert folder.lock().acquire()
RunClaim(folder.writer)
Path("writing").touch()
time.sleep(1)
Path("written").touch()
sys.exit(1)
"""
HANGS = "import os, time; time.sleep(600 * int(os.environ['RANK']))"


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    header = RunHeader(
        id="mine-0001", created_at=0.0, flatout_version="0.1.0", python="",
        spec=ExperimentSpec(name="mine"),
    )  # fmt: skip
    return create_run(header, tmp_path)


@pytest.mark.parametrize(
    ("codes", "does_train", "limit_s"),
    [
        # Rank 0 notices by itself that another one has failed, and tells it.
        ({1: -9}, False, 20.0),
        # It may be writing a checkpoint; then the others have that long, too.
        ({1: -9}, True, 600.0),
        ({0: 1}, False, 5.0),
        # Its launcher, or its actor, has gone, and it has not.
        ({0: 137}, True, 600.0),
        # It has finished; another one hangs.
        ({0: 0}, False, 20.0),
    ],
)
def test_ranks_are_waited_for_as_long_as_there_is_something_to_lose(
    folder: RunFolder,
    monkeypatch: pytest.MonkeyPatch,
    codes: dict[int, int],
    does_train: bool,
    limit_s: float,
) -> None:
    now_s = 1000.0
    monkeypatch.setattr(shutdown_grace, "elapsed_s", lambda: now_s)
    # Of whoever has trained before.
    RunClaim(folder.writer)
    one, lock = ShutdownGrace(folder), folder.lock()
    assert lock.acquire(), "it meets the others, at least"
    if does_train:
        RunClaim(folder.writer)
    assert not one.is_over({}) and not one.is_over({2: 0}), "those end before rank 0 does"
    now_s += 7200.0
    assert not one.is_over(codes)
    now_s += limit_s - 1
    assert not one.is_over(codes)
    now_s += 2
    assert one.is_over(codes)
    lock.release()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scripted(RankJob):
    """Ranks that run these programs, the last of them all further ones."""

    programs: list[list[str]]

    def command(self, python: str = sys.executable) -> list[str]:
        """See Job."""
        return self.programs.pop(0) if len(self.programs) > 1 else self.programs[0]


@pytest.fixture
def lifeline(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lifeline]:
    monkeypatch.chdir(folder.path)
    monkeypatch.setenv("PYTHONPATH", str(SRC))
    lifeline = Lifeline(is_attached=False)
    yield lifeline
    lifeline.cut()
    os.close(lifeline.reading)


def launched(folder: RunFolder, lifeline: Lifeline, *programs: list[str]) -> int:
    return local.launch(
        Scripted(folder=folder.path, num_ranks=2, change="{}", lifeline=lifeline,
                 programs=list(programs))
    )  # fmt: skip


def test_rank_0_is_not_killed_while_it_writes(
    folder: RunFolder, lifeline: Lifeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutdown_grace, "_GRACE_S", 0.1)
    assert launched(folder, lifeline, [sys.executable, "-c", WRITES]) == 1
    assert (folder.path / "written").exists()


def test_a_rank_that_hangs_when_all_is_done_is_ended(
    folder: RunFolder, lifeline: Lifeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutdown_grace, "_GRACE_S", 0.1)
    began_s = clock.elapsed_s()
    assert launched(folder, lifeline, [sys.executable, "-c", HANGS]) == RANK_DIED
    assert clock.elapsed_s() - began_s < 60


def test_ranks_that_cannot_be_started_are_reported_and_leave_nobody(
    folder: RunFolder, lifeline: Lifeline
) -> None:
    hangs = [sys.executable, "-c", "import time; time.sleep(600)"]
    assert launched(folder, lifeline, hangs, ["/no/such/program"]) == 1
    reported = atomic_files.read_lines(folder.events, Event)[-1]
    assert isinstance(reported, Failed) and reported.finding.rule == "ranks-not-placed"
    assert reported.finding.problem == "rank 1 of 2 could not be started."
