"""The worker as a process: started, watched and ended from outside."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from flatout.nouns.change import Change
from flatout.nouns.finding import Finding, Fix
from flatout.nouns.placement import NOT_SHARED, RANK_DIED, Placement
from flatout.nouns.typed import resume_command
from flatout.system.runs import RunFolder
from flatout.system.store import mapped_os_errors
from flatout.system.variables import worker_environment

_NO_MEMORY_LEFT = 0xC0000017
# What Windows reports instead of a signal.
_WINDOWS_CODES = {
    0xC0000005: "an access violation",
    0xC00000FD: "a stack overflow",
    0xC0000409: "a failed security check",
    _NO_MEMORY_LEFT: "no memory left",
}


class Worker:
    """A worker that was started here: the leader of a process group of its own."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        """The worker's process id."""
        return self._process.pid

    def is_running(self) -> bool:
        """Whether it still lives."""
        return self._process.poll() is None

    def exit_code(self) -> int | None:
        """How it ended: negative for a signal; None while it lives."""
        return self._process.poll()

    def kill(self) -> None:
        """Ends it at once, with every process it has started."""
        if sys.platform == "win32":
            _kill_tree(self._process.pid)
        else:
            import psutil

            # torchrun puts its ranks into sessions of their own.
            started: list[psutil.Process] = []
            with contextlib.suppress(psutil.NoSuchProcess):
                started = psutil.Process(self._process.pid).children(recursive=True)
            # First who has started them: it would tell their death as if it had seen it happen.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            for process in started:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        self._process.wait()


def start_worker(
    python: str,
    folder: RunFolder,
    change: Change | None,
    *,
    is_attached: bool,
    on: Placement | None = None,
) -> Worker:
    """Starts the engine on a run's folder, in a process group of its own.

    Args:
        python: the interpreter that trains.
        folder: the run.
        change: what a resume changes.
        is_attached: the worker stops in good order when this process dies (its stdin ends);
            otherwise it goes on without it.
        on: how many ranks are started, and by whom; None starts a single worker.
    """
    # -P: a file `queue.py` in the current folder must not be taken for Python's own.
    # faulthandler: a crash in native code leaves a traceback in the log.
    module = "flatout.engine.worker" if on is None else "flatout.engine.launch"
    command = [python, "-P", "-X", "faulthandler", "-m", module, str(folder.path)]
    if on is not None:
        command += ["--on", str(on)]
    if is_attached:
        command.append("--attached")
    if change is not None and change != Change():
        command += ["--change", change.as_option()]
    with mapped_os_errors(folder.log), open(folder.log, "ab") as log:
        process = subprocess.Popen(
            command,
            env=worker_environment(),
            stdin=subprocess.PIPE if is_attached else subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            creationflags=creation_flags(),
        )
    return Worker(process)


def start_drawing(folder: RunFolder) -> None:
    """Has a run drawn by a process of its own, which nobody waits for; it logs what goes wrong."""
    command = [sys.executable, "-P", "-m", "flatout", "show", str(folder.path), "--plots"]
    with mapped_os_errors(folder.log), open(folder.log, "ab") as log:
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            creationflags=creation_flags(),
        )


def printed_by(folder: RunFolder) -> str:
    """All that the workers of a run have printed."""
    with mapped_os_errors(folder.log):
        return folder.log.read_text(encoding="utf-8", errors="replace")


def worker_died(folder: RunFolder, exit_code: int, change: Change | None) -> Finding:
    """Bad news of a worker that ended without a word in the run's events.

    Args:
        folder: of the run.
        exit_code: of the worker.
        change: to go on with; None for a dry run, whose folder is removed.
    """
    if exit_code == NOT_SHARED:
        return _not_shared(folder)
    name = folder.path.name
    because = f"the worker {ending_text(exit_code)}"
    if exit_code == -9:
        because += "; if you did not kill it, the kernel did, because memory ran out"
    elif exit_code == RANK_DIED:
        because = "one of its ranks was killed, or ended without an error message"
    go_on = f"resume from the last checkpoint: {resume_command(folder.typed, change)}"
    return Finding(
        rule="worker-died",
        severity="error",
        problem=f"the training of {name} ended without an error message.",
        because=because,
        evidence=tuple(_last_lines(folder.log)),
        fixes=(Fix(text=f"read {folder.log}"), Fix(text=go_on)) if change is not None else (),
    )


def _not_shared(folder: RunFolder) -> Finding:
    return Finding(
        rule="run-not-shared",
        severity="error",
        problem=f"{folder.path} is not seen by the machine that was to start the ranks.",
        because="every rank reads the run, and the first writes it, at the same path",
        fixes=(
            Fix(text="put the folder of runs on a disk that all machines mount there: "
                     "FLATOUT_STATE"),
        ),
    )  # fmt: skip


def was_memory_full(exit_code: int | None, kills_before: int | None, kills: int | None) -> bool:
    """Whether a worker was ended by the system because memory was full.

    Args:
        exit_code: of the worker.
        kills_before: how many processes the kernel had ended so when the worker was started.
        kills: the same now; None where it does not tell, and so nobody knows who sent SIGKILL.
    """
    if exit_code == -9:
        return kills_before is not None and kills is not None and kills > kills_before
    return exit_code == _NO_MEMORY_LEFT


def _last_lines(log: Path) -> list[str]:
    with mapped_os_errors(log), open(log, "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
        text = file.read().decode(errors="replace")
    return [f"worker.log: {line}" for line in text.splitlines() if line.strip()][-3:]


def ending_text(exit_code: int) -> str:
    """How a process ended, in words: "was killed by SIGKILL", "ended with exit code 7"."""
    if exit_code < 0:
        try:
            name = signal.Signals(-exit_code).name
        except ValueError:
            name = f"signal {-exit_code}"
        return f"was killed by {name}"
    if exit_code in _WINDOWS_CODES:
        return f"was ended by {_WINDOWS_CODES[exit_code]}"
    return f"ended with exit code {exit_code}"


def creation_flags() -> int:
    """What Windows is told when a process of ours is started."""
    if sys.platform == "win32":
        # Without a console of its own, closing ours would end the worker before its checkpoint.
        return subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW
    return 0


def _kill_tree(pid: int) -> None:
    import psutil

    try:
        leader = psutil.Process(pid)
        for process in [*leader.children(recursive=True), leader]:
            process.kill()
    except psutil.NoSuchProcess:
        pass
