"""A training under way, attended from outside: followed, asked to stop, and judged at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from flatout.nouns.change import Change
from flatout.nouns.finding import finding_from
from flatout.nouns.lines import Failed, Fetched, Finished, Line, Started, Stopped
from flatout.nouns.machine import Machine
from flatout.nouns.outcome import Outcome
from flatout.nouns.placement import RANK_DIED, Placement
from flatout.system.child import start_worker, was_memory_full, worker_died
from flatout.system.interrupts import Interrupts
from flatout.system.kernel_kills import num_kernel_kills
from flatout.system.runs import RunFolder, read_run, run_in_use
from flatout.system.tail import Tail, follow_lines, wait_until_free

# Each start takes less memory than the one before; more of them would not help.
_MOST_STARTS_AGAIN = 3
# How long the processes of a worker that was ended may take to end, too.
_LEFT_OVER_LIMIT_S = 30.0


class Running(Protocol):
    """Whatever trains in a run's folder: a process of this machine, or a job of a cluster."""

    def is_running(self) -> bool:
        """Whether it has not ended."""
        ...

    def exit_code(self) -> int | None:
        """How it ended; None while it has not."""
        ...

    def kill(self) -> None:
        """Ends it at once, and waits until it has ended."""
        ...


@dataclass(kw_only=True)
class Attendance:
    """A worker that was started here, and what its run has told since.

    ending: the line that told its end, once it came. has_begun: it trains, or downloads its data.
    is_trained: it trains. python: the interpreter to start another one with, if this one dies for
    want of memory; None starts none. on: its ranks, if it is spread over several. start: starts
    another one, where it is no process of this machine.
    """

    folder: RunFolder
    machine: Machine
    worker: Running
    tail: Tail
    ending: Finished | Stopped | Failed | None = None
    has_begun: bool = False
    is_trained: bool = False
    python: str | None = None
    on: Placement | None = None
    start: Callable[[Change], Running] | None = None
    num_kernel_kills: int | None = field(default_factory=num_kernel_kills)


def follow(attendance: Attendance, interrupts: Interrupts) -> Iterator[list[Line]]:
    """New lines until the run has ended; Ctrl-C once asks it to stop, twice kills its worker.

    A worker that memory was short for, so that it could not go on by itself, is followed by
    another one, which goes on from the last checkpoint.
    """
    yield from _follow_worker(attendance, interrupts)
    for _ in range(_MOST_STARTS_AGAIN):
        change = _change_after(attendance)
        if change is None or interrupts.count or not _start_again(attendance, change):
            return
        yield from _follow_worker(attendance, interrupts)


def _change_after(attendance: Attendance) -> Change | None:
    """What is different for a worker that goes on where this one ended; None if none is to."""
    if not attendance.is_trained or (attendance.python is None and attendance.start is None):
        return None
    ending = attendance.ending
    if isinstance(ending, Failed) and ending.finding.rule == "gpu-state-lost":
        # It has told in the run's history what takes less memory.
        return Change()
    is_rank_lost = isinstance(ending, Failed) and ending.finding.rule == "rank-lost"
    code, kills = attendance.worker.exit_code(), num_kernel_kills()
    if ending is None and was_memory_full(code, attendance.num_kernel_kills, kills):
        return Change(is_after_kill=True)
    if is_rank_lost or (ending is None and code == RANK_DIED):
        # Which of them the kernel has ended, if it was the kernel, nobody tells.
        return Change(is_after_kill=was_memory_full(-9, attendance.num_kernel_kills, kills))
    return None


def _start_again(attendance: Attendance, change: Change) -> bool:
    folder = attendance.folder
    # A loader's processes may have outlived it.
    attendance.worker.kill()
    if not wait_until_free(folder, _LEFT_OVER_LIMIT_S):
        return False
    attendance.num_kernel_kills = num_kernel_kills()
    attendance.tail = Tail(folder, is_from_end=True)
    attendance.worker = _started(attendance, change)
    attendance.ending, attendance.is_trained = None, False
    return True


def _started(attendance: Attendance, change: Change) -> Running:
    if attendance.start is not None:
        return attendance.start(change)
    assert attendance.python is not None
    return start_worker(
        attendance.python, attendance.folder, change=change, is_attached=True, on=attendance.on
    )


def _follow_worker(attendance: Attendance, interrupts: Interrupts) -> Iterator[list[Line]]:
    folder, worker = attendance.folder, attendance.worker
    for lines in follow_lines(attendance.tail, worker.is_running):
        if interrupts.count > 1:
            worker.kill()
        elif interrupts.count == 1 and attendance.ending is None and not folder.stop.exists():
            # Asked again if it vanishes: a worker that is only beginning clears an old request.
            folder.request_stop()
        attendance.has_begun |= any(isinstance(line, Started | Fetched) for line in lines)
        attendance.is_trained |= any(isinstance(line, Started) for line in lines)
        endings = [line for line in lines if isinstance(line, Finished | Stopped | Failed)]
        attendance.ending = endings[-1] if endings else attendance.ending
        yield lines


def conclude(attendance: Attendance) -> Outcome:
    """What came of a training whose worker has ended."""
    folder, ending = attendance.folder, attendance.ending
    run = read_run(folder)
    code = attendance.worker.exit_code()
    if isinstance(ending, Failed):
        # The worker may also have been killed while it ended, after it had told why.
        exit_code = code if code in (1, 2, 3) else 1
        return Outcome(run=run, finding=ending.finding, exit_code=exit_code)
    if code == 2 and (attendance.has_begun or folder.lock().is_taken()):
        # It tells every refusal as Failed, but that somebody else was quicker to take the run.
        return Outcome(run=run, finding=finding_from(run_in_use(folder)), exit_code=2)
    if ending is None and code is not None:
        finding = worker_died(folder, code)
        return Outcome(run=run, finding=finding, exit_code=3 if code == 3 else 1)
    return Outcome(run=run)
