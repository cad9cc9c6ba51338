"""A run read while somebody else writes it."""

from __future__ import annotations

from pathlib import Path

from support.busy_machine import least_s

from flatout.schema.run_lines import EpochEnded, Line, Started, Stopped
from flatout.system import atomic_files
from flatout.system.store.run_folder import RunFolder
from flatout.system.store.run_tail import RunTail, follow_lines


def started(step: int, *, is_resumed: bool) -> Started:
    return Started(
        at=float(step), step=step, pid=1, num_steps=9, num_epochs=9, steps_per_epoch=1,
        num_parameters=1, num_samples=1, resumed=is_resumed,
    )  # fmt: skip


def ended(step: int) -> EpochEnded:
    return EpochEnded(at=step + 0.5, step=step, epoch=step, loss=0.5)


def append(path: Path, *lines: Line) -> None:
    file = atomic_files.Lines(path)
    for line in lines:
        file.append(line)
    file.close()


def earlier_session(tmp_path: Path) -> RunFolder:
    """Five steps, of which a checkpoint holds three."""
    folder = RunFolder(tmp_path)
    append(folder.events, started(0, is_resumed=False), Stopped(at=6.0, step=5, reason="asked"))
    append(folder.metrics, *(ended(step) for step in range(1, 6)))
    return folder


def test_tail_reads_everything_in_the_order_of_time(tmp_path: Path) -> None:
    tail = RunTail(earlier_session(tmp_path))
    assert [line.step for line in tail.new_lines()] == [0, 1, 2, 3, 4, 5, 5]
    assert tail.new_lines() == []


def test_tail_from_the_end_tells_only_the_new_session(tmp_path: Path) -> None:
    folder = earlier_session(tmp_path)
    tail = RunTail(folder, is_from_end=True)
    assert tail.new_lines() == []
    # The worker cuts its metrics back to the checkpoint, then says that it has started.
    kept = folder.metrics.read_bytes().splitlines(keepends=True)[:3]
    folder.metrics.write_bytes(b"".join(kept))
    assert tail.new_lines() == []
    append(folder.events, started(3, is_resumed=True))
    append(folder.metrics, ended(4))
    assert [(type(line), line.step) for line in tail.new_lines()] == [(Started, 3), (EpochEnded, 4)]
    append(folder.metrics, ended(5))
    assert [line.step for line in tail.new_lines()] == [5]


def test_tail_from_the_end_when_a_resume_begins_anew(tmp_path: Path) -> None:
    folder = earlier_session(tmp_path)
    tail = RunTail(folder, is_from_end=True)
    folder.metrics.write_bytes(b"")
    append(folder.events, started(0, is_resumed=False))
    append(folder.metrics, ended(1))
    assert [line.step for line in tail.new_lines()] == [0, 1]


def test_follow_lines_reads_what_was_written_last(tmp_path: Path) -> None:
    folder = earlier_session(tmp_path)

    def is_working() -> bool:
        # Its last line comes after the reader has asked, and before it has read.
        append(folder.metrics, ended(6))
        return False

    (lines,) = follow_lines(RunTail(folder), is_working)
    assert lines[-1].step == 6


def test_runs_that_are_followed_in_turns_wait_together(tmp_path: Path) -> None:
    followed = [
        follow_lines(RunTail(RunFolder(tmp_path / str(number))), lambda: True)
        for number in range(30)
    ]

    def rounds() -> None:
        for lines in (next(one) for _ in range(3) for one in followed):
            assert lines == []

    # Of three rounds there are two pauses of 0.1 s, where each by itself would take six seconds.
    assert least_s(rounds, 2.0) < 2.0


def test_tail_when_a_session_goes_back(tmp_path: Path) -> None:
    folder = earlier_session(tmp_path)
    tail = RunTail(folder)
    tail.new_lines()
    # In the midst of a session: first its metrics are cut back, then it says so.
    kept = folder.metrics.read_bytes().splitlines(keepends=True)[:3]
    folder.metrics.write_bytes(b"".join(kept))
    assert tail.new_lines() == []
    append(folder.events, started(3, is_resumed=True))
    append(folder.metrics, ended(4), ended(5), ended(6))
    assert [line.step for line in tail.new_lines()] == [3, 4, 5, 6]
