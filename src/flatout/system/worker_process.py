"""The worker as a process: started, watched and ended from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from flatout.schema.change import Change
from flatout.schema.finding import Finding, Fix
from flatout.schema.placement import NOT_SHARED, RANK_DIED, Placement
from flatout.schema.suggested_command import resume_command
from flatout.schema.worker_command import worker_command
from flatout.system.atomic_files import mapped_os_errors
from flatout.system.kill_tree import kill_tree
from flatout.system.process_env import creation_flags, worker_environment
from flatout.system.store.run_folder import RunFolder

_NO_MEMORY_LEFT = 0xC0000017
# What Windows reports instead of a signal.
_WINDOWS_CODES = {
    0xC0000005: "an access violation",
    0xC00000FD: "a stack overflow",
    0xC0000409: "a failed security check",
    _NO_MEMORY_LEFT: "being out of memory",
}


class WorkerProcess:
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
        """The exit code: negative for a signal; None while it lives."""
        return self._process.poll()

    def kill(self) -> None:
        """Kills it, with every process it has started."""
        kill_tree(self._process.pid)
        self._process.wait()


def start_worker(
    python: str,
    folder: RunFolder,
    change: Change | None,
    *,
    is_attached: bool,
    on: Placement | None = None,
    gpus: str | None = None,
) -> WorkerProcess:
    """Starts the engine on a run's folder, in a process group of its own.

    Args:
        python: the interpreter that trains.
        folder: the run.
        change: what a resume changes.
        is_attached: the worker stops in good order when this process dies (its stdin ends);
            otherwise it continues without it.
        on: how many ranks are started, and by whom; None starts a single worker.
        gpus: what CUDA sees of this machine's; None leaves it as it is.
    """
    options = ["--attached"] if is_attached else []
    if on is not None:
        options += ["--on", str(on)]
    command = worker_command(
        python,
        "flatout.engine.training.worker" if on is None else "flatout.engine.launch",
        str(folder.path),
        *options,
        change=change,
    )
    with mapped_os_errors(folder.log), open(folder.log, "ab") as log:
        process = subprocess.Popen(
            command,
            env=worker_environment(gpus),
            stdin=subprocess.PIPE if is_attached else subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            creationflags=creation_flags(),
        )
    return WorkerProcess(process)


def start_drawing(folder: RunFolder) -> None:
    """Has a run drawn by a process of its own, which no one waits for; it logs what goes wrong."""
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
        change: to continue with; None for a dry run, whose folder is removed.
    """
    if exit_code == NOT_SHARED:
        return _not_shared(folder)
    name = folder.path.name
    because = f"the worker {ending_text(exit_code)}"
    if exit_code == -9:
        because += "; if you did not kill it, the kernel did, because memory ran out"
    elif exit_code == RANK_DIED:
        because = "one of its ranks was killed, or exited without an error message"
    go_on = f"resume from the last checkpoint: {resume_command(folder.typed, change)}"
    return Finding(
        rule="worker-died",
        severity="error",
        problem=f"training {name} exited unexpectedly; no error was recorded.",
        because=because,
        evidence=tuple(_last_lines(folder.log)),
        fixes=(Fix(text=f"read {folder.log}"), Fix(text=go_on)) if change is not None else (),
    )


def _not_shared(folder: RunFolder) -> Finding:
    return Finding(
        rule="run-not-shared",
        severity="error",
        problem=f"{folder.path} is not visible to the machine that should start the ranks.",
        because="every rank reads the run at the same path, and the first one writes to it",
        fixes=(
            Fix(text="put the runs folder (FLATOUT_STATE) on a disk that all machines mount at "
                     "the same path"),
        ),
    )  # fmt: skip


def was_memory_full(exit_code: int | None, kills_before: int | None, kills: int | None) -> bool:
    """Whether a worker was ended by the system because memory was full.

    Args:
        exit_code: of the worker.
        kills_before: how many processes the kernel had ended so when the worker was started.
        kills: the same now; None where the system does not report it: who sent SIGKILL is unknown.
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
    """The end of a process in words: "was killed by SIGKILL", "ended with exit code 7"."""
    if exit_code < 0:
        try:
            name = signal.Signals(-exit_code).name
        except ValueError:
            name = f"signal {-exit_code}"
        return f"was killed by {name}"
    if exit_code in _WINDOWS_CODES:
        return f"was ended by {_WINDOWS_CODES[exit_code]}"
    return f"ended with exit code {exit_code}"
