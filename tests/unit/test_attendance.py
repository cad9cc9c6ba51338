"""A worker that was started here: what its end is taken for."""

from __future__ import annotations

import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from flatout.runs.supervisor import Supervisor, conclude, follow
from flatout.schema.change import Change
from flatout.schema.experiment_spec import ExperimentSpec
from flatout.schema.finding import Finding
from flatout.schema.machine import Cpu, Host, Machine, Memory
from flatout.schema.placement import LAUNCHER_LOST, RANK_DIED
from flatout.schema.run import RunHeader
from flatout.schema.run_lines import DESERTED, Failed, Finished, Started, Stopped, Warned
from flatout.system import atomic_files, worker_process
from flatout.system.free_memory import num_kernel_kills
from flatout.system.signals import Interrupts
from flatout.system.store import run_folder
from flatout.system.store.run_folder import RunFolder
from flatout.system.store.run_tail import RunTail, wait_until_free

MACHINE = Machine(
    read_at="", host=Host(os="linux", python="3.11.7"), cpu=Cpu(num_threads=2), memory=Memory(),
    python="",
)  # fmt: skip


def attend(python: str, parent: Path, **parameters: Any) -> Supervisor:
    """A worker, just started on a new run."""
    header = RunHeader(
        id="mine-0001", created_at=0.0, flatout_version="0.1.0", python=python,
        spec=ExperimentSpec(name="mine", parameters=parameters),
    )  # fmt: skip
    folder = run_folder.create_run(header, parent)
    return begun(python, folder)


def begun(python: str, folder: RunFolder) -> Supervisor:
    start = partial(worker_process.start_worker, python, folder, is_attached=True)
    return Supervisor(
        folder=folder, machine=MACHINE, worker=start(None), start=start, tail=RunTail(folder)
    )


@pytest.fixture(autouse=True)
def no_python_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake engine stands in the environment; PYTHONPATH would put the real one before it."""
    monkeypatch.delenv("PYTHONPATH", raising=False)


@pytest.mark.skipif(sys.platform == "win32", reason="the fake engine's lock is another there")
def test_conclude_when_somebody_else_was_quicker(fake_python: str, tmp_path: Path) -> None:
    folder = run_folder.create_run(
        RunHeader(
            id="mine-0001", created_at=0.0, flatout_version="0.1.0", python=fake_python,
            spec=ExperimentSpec(name="mine"),
        ),
        tmp_path,
    )  # fmt: skip
    lock = folder.lock()
    assert lock.acquire()
    loser = begun(fake_python, folder)
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
    folder = run_folder.RunFolder(tmp_path)
    lock = folder.lock()
    assert lock.acquire()
    interrupts = Interrupts()
    assert not wait_until_free(folder, 0.0, interrupts)
    interrupts.count = 1
    with pytest.raises(KeyboardInterrupt):
        wait_until_free(folder, 60.0, interrupts)
    lock.release()
    assert wait_until_free(folder, 60.0, interrupts)


def test_follow_goes_on_when_the_gpu_is_lost(fake_python: str, tmp_path: Path) -> None:
    attendance = attend(fake_python, tmp_path, mode="lose-gpu")
    lines = [line for new in follow(attendance, Interrupts()) for line in new]
    assert [line.resumed for line in lines if isinstance(line, Started)] == [False, True]
    outcome = conclude(attendance)
    assert (outcome.run.status, outcome.exit_code, outcome.finding) == ("finished", 0, None)


def test_follow_goes_on_when_a_search_has_lost_the_gpu(fake_python: str, tmp_path: Path) -> None:
    attendance = attend(fake_python, tmp_path, mode="lose-gpu-first")
    lines = [line for new in follow(attendance, Interrupts()) for line in new]
    assert [line.resumed for line in lines if isinstance(line, Started)] == [False]
    outcome = conclude(attendance)
    assert (outcome.run.status, outcome.exit_code, outcome.finding) == ("finished", 0, None)


@pytest.mark.skipif(num_kernel_kills() is None, reason="needs a kernel that counts whom it ends")
@pytest.mark.parametrize(("kills_before", "status"), [(-1, "finished"), (10**9, "interrupted")])
def test_follow_goes_on_when_the_kernel_has_ended_the_worker(
    fake_python: str, tmp_path: Path, kills_before: int, status: str
) -> None:
    attendance = attend(fake_python, tmp_path, mode="die")
    # Fewer than there are: one was ended while it trained. More: somebody else has killed it.
    attendance.num_kernel_kills = kills_before
    list(follow(attendance, Interrupts()))
    assert conclude(attendance).run.status == status


def test_follow_starts_a_few_workers_at_most(fake_python: str, tmp_path: Path) -> None:
    attendance = attend(fake_python, tmp_path, mode="lose-gpu", steps=3)
    lines = []
    for new in follow(attendance, Interrupts()):
        lines += new
        # Whatever it has saved is gone: it loses the GPU again.
        shutil.rmtree(attendance.folder.checkpoints, ignore_errors=True)
    assert 1 < sum(isinstance(line, Started) for line in lines) <= 4
    outcome = conclude(attendance)
    assert outcome.exit_code == 1
    assert outcome.finding is not None and outcome.finding.rule == "gpu-state-lost"


@pytest.mark.parametrize(
    ("exit_code", "before", "now", "is_full"),
    [
        (-9, 3, 4, True), (-9, 3, 3, False), (-9, None, None, False), (-9, None, 4, False),
        (-11, 3, 4, False), (1, 3, 4, False), (None, 3, 4, False), (0xC0000017, None, None, True),
    ],
)  # fmt: skip
def test_memory_was_full_when(
    exit_code: int | None, before: int | None, now: int | None, is_full: bool
) -> None:
    assert worker_process.was_memory_full(exit_code, before, now) is is_full


def test_kernel_kills_are_read(tmp_path: Path) -> None:
    counts = tmp_path / "vmstat"
    assert num_kernel_kills(counts) is None
    counts.write_text("nr_free_pages 7\n")
    assert num_kernel_kills(counts) is None
    counts.write_text("nr_free_pages 7\noom_kill 3\noom_kill_x 9\n")
    assert num_kernel_kills(counts) == 3


class Ended:
    """A launcher that has ended."""

    def __init__(self, code: int) -> None:
        self.code = code

    def is_running(self) -> bool:
        return False

    def exit_code(self) -> int:
        return self.code

    def kill(self) -> None:
        """It has ended."""


def deserted(tmp_path: Path, code: int, *lines: Any) -> tuple[Supervisor, list[Change]]:
    """A training on two ranks elsewhere whose launcher has ended, and what is started after it."""
    header = RunHeader(
        id="mine-0001", created_at=0.0, flatout_version="0.1.0", python="",
        spec=ExperimentSpec(name="mine"),
    )  # fmt: skip
    folder = run_folder.create_run(header, tmp_path)
    events = atomic_files.Lines(folder.events)
    for line in lines:
        events.append(line)
    events.close()
    starts: list[Change] = []

    def start(change: Change) -> Ended:
        starts.append(change)
        return Ended(0)

    attendance = Supervisor(
        folder=folder, machine=MACHINE, worker=Ended(code), start=start, tail=RunTail(folder),
        change=RESUMED, are_ranks=True,
    )  # fmt: skip
    return attendance, starts


# What was asked for, and what of it the run's folder does not tell.
RESUMED = Change(epochs=7, on="local:2", leave_free_bytes=5)
AGAIN = Change(on="local:2", leave_free_bytes=5)
STARTED = Started(
    at=1.0, step=0, pid=1, num_steps=None, num_epochs=None, steps_per_epoch=None,
    num_parameters=1, num_samples=None, num_ranks=2,
)  # fmt: skip
FINISHED = Finished(at=2.0, step=3, train_s=1.0, split_s={}, num_samples_seen=3)
RANK_LOST = Failed(
    at=2.0, step=3,
    finding=Finding(rule="rank-lost", severity="error", problem="rank 1 of 2 has gone."),
)  # fmt: skip
PORT_TAKEN = Failed(
    at=1.0, step=0,
    finding=Finding(rule="rendezvous-port-taken", severity="error", problem="taken"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("code", "lines", "changes"),
    [
        (-9, [STARTED], [AGAIN]),
        (1, [STARTED, RANK_LOST], [AGAIN]),
        (137, [STARTED, Stopped(at=2.0, step=3, reason=DESERTED)], [AGAIN]),
        # The launcher, or the actor, of another rank than the first.
        (RANK_DIED, [STARTED, Stopped(at=2.0, step=3, reason=DESERTED)], [AGAIN]),
        (RANK_DIED, [STARTED, FINISHED], []),
        # Who has started them was asked to end, and has asked them.
        (0, [STARTED, Stopped(at=2.0, step=3, reason=DESERTED)], []),
        # Somebody wanted it to stop.
        (-9, [STARTED, Stopped(at=2.0, step=3, reason="asked to stop")], []),
        # What was asked for when it was resumed is asked for again.
        (1, [PORT_TAKEN], [RESUMED]),
    ],
)
def test_ranks_are_started_again_where_one_was_lost(
    tmp_path: Path, code: int, lines: list[Any], changes: list[Change]
) -> None:
    attendance, starts = deserted(tmp_path, code, *lines)
    seen = [line for new in follow(attendance, Interrupts()) for line in new]
    assert starts == changes
    # Why, where the run has told it itself, is said in one line.
    notes = [line.finding.problem for line in seen if isinstance(line, Warned)]
    why = [line.finding.problem for line in lines if isinstance(line, Failed)]
    assert notes == [f"started again: {problem}" for problem in why]


def test_ranks_that_somebody_has_asked_to_stop_are_not_started_again(tmp_path: Path) -> None:
    attendance, starts = deserted(tmp_path, 1, STARTED, RANK_LOST)
    # `flatout runs stop`, while rank 0 was telling that another one is lost.
    attendance.folder.request_stop()
    list(follow(attendance, Interrupts()))
    assert starts == []


def test_what_was_lost_in_vain_is_reported_even_where_ranks_have_stopped(tmp_path: Path) -> None:
    left_alone = [STARTED, Stopped(at=2.0, step=3, reason=DESERTED)]
    attendance, _ = deserted(tmp_path, RANK_DIED, *left_alone)
    attendance.folder.log.touch()
    attendance.num_futile_restarts = 3
    list(follow(attendance, Interrupts()))
    reported = conclude(attendance)
    assert reported.exit_code == 1 and reported.finding is not None
    assert "restarted 3 times" in str(reported.finding.because)


def test_starts_are_counted_since_the_run_has_last_got_further(tmp_path: Path) -> None:
    lines = [STARTED, RANK_LOST]
    attendance, _ = deserted(tmp_path, 1, *lines)
    folder, count = attendance.folder, 0

    def start(change: Change) -> Ended:
        nonlocal count
        count += 1
        # A node is lost now and then for a week; at last one cannot be used any more.
        if count <= 5:
            (folder.checkpoints / str(count)).mkdir(parents=True)
            (folder.checkpoints / str(count) / "rank0.json").touch()
        events = atomic_files.Lines(folder.events)
        for line in lines:
            events.append(line)
        events.close()
        return Ended(1)

    attendance.start = start
    list(follow(attendance, Interrupts()))
    assert count == 5 + 3
    outcome = conclude(attendance)
    assert outcome.finding is not None and outcome.finding.rule == "rank-lost"
    assert "restarted 3 times" in str(outcome.finding.because)


def test_two_never_train_while_a_node_that_was_cut_off_holds_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_QUIET_S", "_CUT_OFF_LIMIT_S", "_LEFT_OVER_LIMIT_S"):
        monkeypatch.setattr(f"flatout.runs.supervisor.{name}", 0.2)
    monkeypatch.setenv("FLATOUT_RANKS_LIMIT_S", "0.2")
    attendance, starts = deserted(tmp_path, 1, STARTED, RANK_LOST)
    lock = attendance.folder.lock()
    assert lock.acquire()
    lines = [line for new in follow(attendance, Interrupts()) for line in new]
    assert starts == []
    (note,) = [line.finding for line in lines if isinstance(line, Warned)]
    assert "for the previous ranks" in note.problem
    outcome = conclude(attendance)
    assert outcome.finding is not None and outcome.finding.rule == "run-in-use"
    assert outcome.exit_code == 1
    lock.release()


def test_a_head_that_is_lost_is_reported(tmp_path: Path) -> None:
    attendance, starts = deserted(tmp_path, LAUNCHER_LOST, STARTED)
    list(follow(attendance, Interrupts()))
    outcome = conclude(attendance)
    assert outcome.finding is not None and outcome.finding.rule == "ray-not-answering"
    assert f"--resume {attendance.folder.path} --trust" in outcome.finding.fixes[-1].text
    lock = attendance.folder.lock()
    assert lock.acquire()
    held = conclude(attendance).finding
    assert held is not None and not any("--resume" in fix.text for fix in held.fixes)
    lock.release()
    assert starts == []


def test_a_worker_that_could_not_say_why_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attendance, _ = deserted(tmp_path, 1, STARTED)
    attendance.folder.log.touch()
    list(follow(attendance, Interrupts()))
    died = conclude(attendance).finding
    assert died is not None and died.rule == "worker-died"
    monkeypatch.setattr("flatout.system.atomic_files._LEAST_ROOM_BYTES", 2**62)
    full = conclude(attendance).finding
    assert full is not None and full.rule == "disk-full"


def test_nobody_is_started_again_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flatout.system.atomic_files._LEAST_ROOM_BYTES", 2**62)
    attendance, starts = deserted(tmp_path, RANK_DIED, STARTED)
    list(follow(attendance, Interrupts()))
    assert starts == []
    full = conclude(attendance).finding
    assert full is not None and full.rule == "disk-full"
