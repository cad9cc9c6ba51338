"""A training under way, attended from outside: followed, asked to stop, and judged at its end."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from flatout.nouns.change import Change
from flatout.nouns.finding import Finding, Fix, finding_from
from flatout.nouns.lines import DESERTED, Failed, Fetched, Finished, Line, Started, Stopped, Warned
from flatout.nouns.machine import Machine
from flatout.nouns.outcome import Outcome
from flatout.nouns.placement import LAUNCHER_LOST, RANK_DIED, Placement
from flatout.nouns.units import seconds_text
from flatout.system.child import start_worker, was_memory_full, worker_died
from flatout.system.clock import elapsed_s, now_s
from flatout.system.interrupts import Interrupts
from flatout.system.kernel_kills import num_kernel_kills
from flatout.system.runs import RunFolder, read_run, run_in_use
from flatout.system.store import no_room
from flatout.system.tail import Tail, follow_lines, wait_until_free

# In a row, without getting further than the checkpoint before: more of them would not help.
_MOST_STARTS_AGAIN = 3
# How long the processes of a worker that was ended may take to end, too.
_LEFT_OVER_LIMIT_S = 30.0
# Ranks on a node that was cut off have to notice it first: engine/connection.py, and Ray.
_ELSEWHERE_LIMIT_S = 150.0
_UNTOLD_S = 5.0
# Who has started the ranks was killed; where it ran in a shell, the shell tells it as 128 + 9.
_KILLED = (-9, 137)


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
    another one, where it is no process of this machine. change: what the first one was told.
    is_held: the run could not be gone on with, since somebody else still worked in its folder.
    num_in_vain: starts again since the run has last got further. is_given_up: they were too many.
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
    change: Change = field(default_factory=Change)
    is_held: bool = False
    num_in_vain: int = 0
    is_given_up: bool = False
    num_kernel_kills: int | None = field(default_factory=num_kernel_kills)


def follow(attendance: Attendance, interrupts: Interrupts) -> Iterator[list[Line]]:
    """New lines until the run has ended; Ctrl-C once asks it to stop, twice kills its worker.

    A worker that memory was short for, so that it could not go on by itself, is followed by
    another one, which goes on from the last checkpoint.
    """
    yield from _follow_worker(attendance, interrupts)
    reached = _reached(attendance.folder)
    while True:
        change = _change_after(attendance)
        if change is None or interrupts.count:
            return
        before, reached = reached, _reached(attendance.folder)
        attendance.num_in_vain = 0 if reached > before else attendance.num_in_vain
        if attendance.num_in_vain == _MOST_STARTS_AGAIN:
            attendance.is_given_up = True
            return
        attendance.num_in_vain += 1
        attendance.is_held = not (yield from _freed(attendance, interrupts))
        if attendance.is_held or interrupts.count:
            return
        _start_again(attendance, change)
        yield from _follow_worker(attendance, interrupts)


def _reached(folder: RunFolder) -> int:
    return max(folder.checkpoint_steps(), default=0)


def _change_after(attendance: Attendance) -> Change | None:
    """What is different for a worker that goes on where this one ended; None if none is to."""
    if attendance.python is None and attendance.start is None:
        return None
    ending = attendance.ending
    rule = ending.finding.rule if isinstance(ending, Failed) else None
    if rule == "rendezvous-port-taken":
        # Nothing was begun, and another port is found.
        return attendance.change
    if not attendance.is_trained:
        return None
    if rule == "gpu-state-lost":
        # It has told in the run's history what takes less memory.
        return Change()
    code, kills = attendance.worker.exit_code(), num_kernel_kills()
    if ending is None and was_memory_full(code, attendance.num_kernel_kills, kills):
        return Change(is_after_kill=True)
    if rule == "rank-lost" or (ending is None and code == RANK_DIED):
        # Which of them the kernel has ended, if it was the kernel, nobody tells.
        return Change(is_after_kill=was_memory_full(-9, attendance.num_kernel_kills, kills))
    is_deserted = isinstance(ending, Stopped) and ending.reason == DESERTED
    if attendance.on is not None and code in _KILLED and (ending is None or is_deserted):
        # Who has started the ranks was killed, and they have stopped, or will.
        return Change()
    return None


def _freed(attendance: Attendance, interrupts: Interrupts) -> Generator[list[Line], None, bool]:
    """Waits until nobody works in the run's folder any more; says so where that lasts.

    Ranks whose launcher is gone are writing a checkpoint; those that were cut off do not know it
    yet. On this machine they are ended where they do not end.
    """
    folder = attendance.folder
    if attendance.on is not None and not wait_until_free(folder, _UNTOLD_S):
        limit_s = _LEFT_OVER_LIMIT_S if attendance.start is None else _ELSEWHERE_LIMIT_S
        yield [Warned(at=now_s(), step=0, finding=_held_for(limit_s))]
        end_s = elapsed_s() + limit_s
        while elapsed_s() < end_s and not interrupts.count and folder.lock().is_taken():
            wait_until_free(folder, 1.0)
            yield []
    # A loader's processes may have outlived it.
    attendance.worker.kill()
    return wait_until_free(folder, _LEFT_OVER_LIMIT_S)


def _start_again(attendance: Attendance, change: Change) -> None:
    attendance.num_kernel_kills = num_kernel_kills()
    attendance.tail = Tail(attendance.folder, is_from_end=True)
    attendance.worker = _started(attendance, change)
    attendance.ending, attendance.is_trained = None, False


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
    if attendance.is_held:
        return Outcome(run=run, finding=_still_held(folder), exit_code=1)
    if isinstance(ending, Failed):
        # The worker may also have been killed while it ended, after it had told why.
        exit_code = code if code in (1, 2, 3) else 1
        finding = _given_up(ending.finding) if attendance.is_given_up else ending.finding
        return Outcome(run=run, finding=finding, exit_code=exit_code)
    if code == 2 and (attendance.has_begun or folder.lock().is_taken()):
        # It tells every refusal as Failed, but that somebody else was quicker to take the run.
        return Outcome(run=run, finding=finding_from(run_in_use(folder)), exit_code=2)
    if ending is None and code == LAUNCHER_LOST:
        return Outcome(run=run, finding=_head_lost(folder), exit_code=1)
    if ending is None and code is not None:
        full = no_room(folder.path)
        finding = finding_from(full) if full else worker_died(folder, code)
        finding = _given_up(finding) if attendance.is_given_up else finding
        return Outcome(run=run, finding=finding, exit_code=3 if code == 3 else 1)
    return Outcome(run=run)


def _given_up(finding: Finding) -> Finding:
    told = f"started again {_MOST_STARTS_AGAIN} times, it has not got to another checkpoint"
    because = f"{finding.because}; {told}" if finding.because else told
    return msgspec.structs.replace(finding, because=because)


def _held_for(limit_s: float) -> Finding:
    return Finding(
        rule="run-in-use",
        severity="note",
        problem="waiting for the ranks of before, which still work in the run's folder, "
        f"{seconds_text(limit_s)} at most.",
        because="they write a checkpoint; or were cut off, and do not know it yet",
    )


def _still_held(folder: RunFolder) -> Finding:
    name = folder.path.name
    return Finding(
        rule="run-in-use",
        severity="error",
        problem=f"the run {name} is not gone on with: ranks of before still work in its folder.",
        because="a node may have been cut off, and its ranks have not ended",
        fixes=(Fix(text=f"end them; then go on: flatout train --resume {name}"),),
    )


def _head_lost(folder: RunFolder) -> Finding:
    name = folder.path.name
    if folder.lock().is_taken():
        go_on = f"its ranks still work: follow them: flatout show {name} --follow"
    else:
        go_on = f"go on from the last checkpoint: flatout train --resume {name} --on ..."
    return Finding(
        rule="ray-not-answering",
        severity="error",
        problem=f"Ray's head does not answer any more, and {name} cannot be followed.",
        because="its ranks stop with a checkpoint once their nodes have noticed it, in a minute "
        "or so",
        fixes=(
            Fix(text="start the head again: flatout cluster up"),
            Fix(text=go_on),
        ),
    )
