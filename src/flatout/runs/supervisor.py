"""Supervises a training from outside: follows it, asks it to stop, judges how it ended."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Literal, Protocol

import msgspec

from flatout.schema.change import Change
from flatout.schema.exit_status import ExitStatus, Outcome
from flatout.schema.finding import Finding, Fix, finding_from
from flatout.schema.machine import Machine
from flatout.schema.placement import LAUNCHER_LOST
from flatout.schema.run_lines import Failed, Fetched, Finished, Line, Started, Stopped, Warned
from flatout.schema.suggested_command import resume_command, show_command
from flatout.schema.units import seconds_text
from flatout.system.atomic_files import no_room
from flatout.system.clock import elapsed_s, now_s
from flatout.system.free_memory import num_kernel_kills
from flatout.system.process_env import ranks_limit_s
from flatout.system.signals import Interrupts
from flatout.system.store.failed_start import is_failed_start, set_aside
from flatout.system.store.run_folder import RunFolder, read_run, run_in_use
from flatout.system.store.run_tail import RunTail, follow_lines, wait_until_free
from flatout.system.worker_process import was_memory_full, worker_died

# In a row, without reaching another checkpoint: more of them would not help.
_MOST_STARTS_AGAIN = 3
# How long the processes of a stopped worker may take to exit.
_LEFT_OVER_LIMIT_S = 30.0
# Ranks on a disconnected node have to notice it first: engine/ranks/connection.py, and Ray.
_CUT_OFF_LIMIT_S = 150.0
# Ranks usually exit by then; a note about it would only worry. Later, the wait is explained.
_QUIET_S = 5.0


class Running(Protocol):
    """The trainer of a run's folder: a process on this machine, or a job on a cluster."""

    def is_running(self) -> bool:
        """Whether it has not ended."""
        ...

    def exit_code(self) -> int | None:
        """The exit code; None while it is running."""
        ...

    def kill(self) -> None:
        """Kills it, and waits until it has ended."""
        ...


@dataclass(kw_only=True)
class Supervisor:
    """A training that was started here, and what its run has reported since.

    worker: the current one. start: starts another one, given what changes. change: what the first
    one was given. are_ranks: it is several processes. is_new: the run was created for it.
    last_word: the line that reports its end, once it arrived. has_begun: it trains, or downloads
    its data. is_trained: it trains.
    num_futile_restarts: restarts since the last progress. obstacle: why it was not restarted:
    previous ranks still use its folder ("locked"), or restarts made no progress.
    """

    folder: RunFolder
    machine: Machine
    worker: Running
    start: Callable[[Change], Running]
    tail: RunTail
    change: Change = field(default_factory=Change)
    are_ranks: bool = False
    is_new: bool = False
    last_word: Finished | Stopped | Failed | None = None
    has_begun: bool = False
    is_trained: bool = False
    num_futile_restarts: int = 0
    obstacle: Literal["locked", "no progress"] | None = None
    num_kernel_kills: int | None = field(default_factory=num_kernel_kills)

    @property
    def ending(self) -> ExitStatus:
        """The end of the worker."""
        return ExitStatus(line=self.last_word, code=self.worker.exit_code())


def follow(supervisor: Supervisor, interrupts: Interrupts) -> Iterator[list[Line]]:
    """New lines until the run has ended; Ctrl-C once asks it to stop, twice kills its worker.

    A worker that ran out of memory and could not recover is replaced by another one, which resumes
    from the last checkpoint; so are ranks when one of them was lost.
    """
    yield from _follow_worker(supervisor, interrupts)
    reached = _reached(supervisor.folder)
    while True:
        change = _change_after(supervisor)
        if change is None or interrupts.count:
            return
        before, reached = reached, _reached(supervisor.folder)
        supervisor.num_futile_restarts = 0 if reached > before else supervisor.num_futile_restarts
        if supervisor.num_futile_restarts == _MOST_STARTS_AGAIN:
            supervisor.obstacle = "no progress"
            return
        supervisor.num_futile_restarts += 1
        if not (yield from _freed(supervisor, interrupts)):
            supervisor.obstacle = "locked"
            return
        # After a stop was requested while ranks were exiting, no others are started.
        if interrupts.count or supervisor.folder.stop.exists():
            return
        if isinstance(supervisor.last_word, Failed):
            yield [_begun_again(supervisor.last_word)]
        _start_again(supervisor, change)
        yield from _follow_worker(supervisor, interrupts)


def _reached(folder: RunFolder) -> int:
    return max(folder.checkpoint_steps(), default=0)


def _change_after(supervisor: Supervisor) -> Change | None:
    """The change for a worker that resumes after this one; None if none should."""
    ending = supervisor.ending
    if ending.rule == "rendezvous-port-taken":
        # Nothing was started, and another port is free.
        return supervisor.change
    if no_room(supervisor.folder.path):
        # On a full disk no worker could continue.
        return None
    if ending.rule == "gpu-state-lost":
        # The run's history records what takes less memory, or what a search has found so far.
        change = supervisor.change
        return change.again() if supervisor.is_trained else change
    if not supervisor.is_trained:
        return None
    before, kills = supervisor.num_kernel_kills, num_kernel_kills()
    if ending.line is None and was_memory_full(ending.code, before, kills):
        return supervisor.change.again(is_after_kill=True)
    if supervisor.are_ranks and ending.is_loss:
        # Which of them the kernel killed, if it was the kernel, is unknown.
        is_full = was_memory_full(-9, before, kills)
        return supervisor.change.again(is_after_kill=is_full)
    return None


def _freed(supervisor: Supervisor, interrupts: Interrupts) -> Generator[list[Line], None, bool]:
    """Waits until no process uses the run's folder; reports it if that takes long.

    Ranks whose launcher is gone are writing a checkpoint; disconnected ones have not noticed yet.
    Those that do not exit are killed.
    """
    folder = supervisor.folder
    if supervisor.are_ranks and not wait_until_free(folder, _QUIET_S):
        limit_s = max(_CUT_OFF_LIMIT_S, ranks_limit_s())
        yield [Warned(at=now_s(), step=0, finding=_waiting_for_lock(limit_s))]
        end_s = elapsed_s() + limit_s
        while elapsed_s() < end_s and not interrupts.count and folder.lock().is_taken():
            wait_until_free(folder, 1.0)
            yield []
    # A loader's processes may have outlived it.
    supervisor.worker.kill()
    return wait_until_free(folder, _LEFT_OVER_LIMIT_S)


def _start_again(supervisor: Supervisor, change: Change) -> None:
    supervisor.num_kernel_kills = num_kernel_kills()
    supervisor.tail = RunTail(supervisor.folder, is_from_end=True)
    supervisor.worker = supervisor.start(change)
    supervisor.last_word, supervisor.is_trained = None, False


def _follow_worker(supervisor: Supervisor, interrupts: Interrupts) -> Iterator[list[Line]]:
    folder, worker = supervisor.folder, supervisor.worker
    for lines in follow_lines(supervisor.tail, worker.is_running):
        if interrupts.count > 1:
            worker.kill()
        elif interrupts.count == 1 and supervisor.last_word is None and not folder.stop.exists():
            # Asked again if it vanishes: a worker that is only beginning clears an old request.
            folder.request_stop()
        supervisor.has_begun |= any(isinstance(line, Started | Fetched) for line in lines)
        supervisor.is_trained |= any(isinstance(line, Started) for line in lines)
        endings = [line for line in lines if isinstance(line, Finished | Stopped | Failed)]
        supervisor.last_word = endings[-1] if endings else supervisor.last_word
        yield lines


def conclude(supervisor: Supervisor) -> Outcome:
    """The outcome of a training whose worker has ended."""
    folder, ending = supervisor.folder, supervisor.ending
    folder.attended.release()
    run = read_run(folder)
    line, code = ending.line, ending.code
    if supervisor.obstacle == "locked":
        return Outcome(run=run, finding=_still_locked(folder, supervisor.change), exit_code=1)
    if isinstance(line, Failed):
        # The worker may also have been killed while it exited, after it had reported why.
        exit_code = code if code in (1, 2, 3) else 1
        finding = _judged(supervisor, line.finding)
        if supervisor.is_new and is_failed_start(run, finding.rule, exit_code):
            aside = set_aside(run)
            is_kept = aside is run
            return Outcome(run=aside, finding=finding, exit_code=exit_code, is_kept=is_kept)
        return Outcome(run=run, finding=finding, exit_code=exit_code)
    if code == 2 and (supervisor.has_begun or folder.lock().is_taken()):
        # It reports every refusal as Failed, except that another process was faster to take the
        # run.
        return Outcome(run=run, finding=finding_from(run_in_use(folder)), exit_code=2)
    if line is None and code == LAUNCHER_LOST:
        return Outcome(run=run, finding=_head_lost(folder, supervisor.change), exit_code=1)
    if (line is None or ending.is_loss) and code is not None:
        full = no_room(folder.path)
        finding = (
            finding_from(full)
            if full
            else worker_died(
                folder, code, None if run.header.spec.is_dry_run else supervisor.change.again()
            )
        )
        finding = _judged(supervisor, finding)
        return Outcome(run=run, finding=finding, exit_code=3 if code == 3 else 1)
    return Outcome(run=run)


def _begun_again(ending: Failed) -> Warned:
    finding = ending.finding
    again = Finding(rule=finding.rule, severity="note", problem=f"started again: {finding.problem}")
    return Warned(at=now_s(), step=ending.step, finding=again)


def _judged(supervisor: Supervisor, finding: Finding) -> Finding:
    """The finding of a failure, with the restarts that did not help."""
    if supervisor.obstacle != "no progress":
        return finding
    restarts = f"restarted {_MOST_STARTS_AGAIN} times without reaching another checkpoint"
    because = f"{finding.because}; {restarts}" if finding.because else restarts
    return msgspec.structs.replace(finding, because=because)


def _waiting_for_lock(limit_s: float) -> Finding:
    return Finding(
        rule="run-in-use",
        severity="note",
        problem=f"waiting up to {seconds_text(limit_s)} for the previous ranks to exit; they "
        "still use the run's folder.",
        because="they are writing a checkpoint, or were disconnected or paused and have not "
        "noticed it yet",
    )


def _still_locked(folder: RunFolder, change: Change) -> Finding:
    name = folder.path.name
    again = resume_command(folder.typed, change.again())
    return Finding(
        rule="run-in-use",
        severity="error",
        problem=f"run {name} cannot be resumed: previous ranks still use its folder.",
        because="a node may have been disconnected or paused, and its ranks are still running",
        fixes=(Fix(text=f"stop them, then resume: {again}"),),
    )


def _head_lost(folder: RunFolder, change: Change) -> Finding:
    name = folder.path.name
    if folder.lock().is_taken():
        go_on = (
            f"its ranks are still running; follow them: {show_command(folder.typed, '--follow')}"
        )
    else:
        go_on = f"resume from the last checkpoint: {resume_command(folder.typed, change.again())}"
    return Finding(
        rule="ray-not-answering",
        severity="error",
        problem=f"Ray's head no longer answers, so {name} cannot be followed.",
        because="its ranks stop with a checkpoint once their nodes notice, within about a minute",
        fixes=(
            Fix(text="start the head again: flatout cluster up"),
            Fix(text=go_on),
        ),
    )
