"""A training under way, attended from outside: followed, asked to stop, and judged at its end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from flatout.nouns.finding import finding_from
from flatout.nouns.lines import Failed, Fetched, Finished, Line, Started, Stopped
from flatout.nouns.machine import Machine
from flatout.nouns.outcome import Outcome
from flatout.system.child import Worker, worker_died
from flatout.system.interrupts import Interrupts
from flatout.system.runs import RunFolder, read_run, run_in_use
from flatout.system.tail import Tail, follow_lines


@dataclass(kw_only=True)
class Attendance:
    """A worker that was started here, and what its run has told since.

    ending: the line that told its end, once it came. has_begun: it trains, or downloads its data.
    """

    folder: RunFolder
    machine: Machine
    worker: Worker
    tail: Tail
    ending: Finished | Stopped | Failed | None = None
    has_begun: bool = False


def follow(attendance: Attendance, interrupts: Interrupts) -> Iterator[list[Line]]:
    """New lines until the worker has ended; Ctrl-C once asks it to stop, twice kills it."""
    folder, worker = attendance.folder, attendance.worker
    for lines in follow_lines(attendance.tail, worker.is_running):
        if interrupts.count > 1:
            worker.kill()
        elif interrupts.count == 1 and attendance.ending is None and not folder.stop.exists():
            # Asked again if it vanishes: a worker that is only beginning clears an old request.
            folder.request_stop()
        attendance.has_begun |= any(isinstance(line, Started | Fetched) for line in lines)
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
