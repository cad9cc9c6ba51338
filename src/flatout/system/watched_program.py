"""A program that runs as if it had been typed without flatout, and is watched."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from flatout.errors import UsageError
from flatout.system.clock import elapsed_s
from flatout.system.output_copy import OutputCopy
from flatout.system.pass_signals import SignalRelay

# Windows does not let Ctrl-C interrupt a longer wait.
_POLL_S = 0.5


class ProgramEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a program. exit_code: below zero for a signal.

    cpu_s: of it and of all that it has waited for; rss_bytes: the most of one process. None where
    the system does not say.
    """

    exit_code: int
    cpu_s: float | None = None
    rss_bytes: int | None = None


class WatchedProgram:
    """A program with our standard input, environment, folder and open files.

    Args:
        argv: as typed.
        log: the file for what it prints; None: it is not recorded.
        environment: all of its variables, instead of ours.
        is_stdout_free: what it prints goes to our stderr, all of it.

    Raises:
        UsageError: program-not-found, program-not-started.
    """

    def __init__(
        self,
        argv: Sequence[str],
        log: Path | None,
        *,
        environment: Mapping[str, str] | None = None,
        is_stdout_free: bool = False,
    ) -> None:
        self._signals = SignalRelay()
        targets = (2, 2) if is_stdout_free else (1, 2)
        self._output = None if log is None else OutputCopy(log, targets)
        given = targets if self._output is None else (self._output.stdout, self._output.stderr)
        self.end: ProgramEnd | None = None
        self._signals.__enter__()
        try:
            self._process = subprocess.Popen(
                [_program(argv[0]), *argv[1:]],
                stdout=given[0],
                stderr=given[1],
                env=environment,
                # Make's job server, for one, is a file that is inherited.
                close_fds=False,
            )
        except OSError as error:
            if self._output is not None:
                self._output.cancel()
            self._signals.__exit__()
            raise _not_started(argv[0], error) from error
        self.pid = self._process.pid
        self._signals.begin(self.pid)
        if self._output is not None:
            self._output.begin()

    def wait(self, limit_s: float) -> bool:
        """Passes signals on until the program has ended, or that time is up; whether it has."""
        until_s = elapsed_s() + limit_s
        while not self._has_ended():
            left_s = until_s - elapsed_s()
            if left_s <= 0:
                return False
            if sys.platform == "win32":
                left_s = min(left_s, _POLL_S)
            self._react(self._signals.wait(self._process, left_s))
        return True

    def _react(self, number: int | None) -> None:
        if sys.platform == "win32" or number is None:
            return
        if number == signal.SIGWINCH and self._output is not None and self._output.follow_size():
            self._signals.pass_on(number)
        elif number == signal.SIGTSTP:
            if self._output is not None:
                self._output.line.erase()
            self._signals.stop_with_program()

    def _has_ended(self) -> bool:
        if self.end is not None:
            return True
        if sys.platform == "win32":
            code = self._process.poll()
            if code is not None:
                self.end = ProgramEnd(exit_code=code)
            return code is not None
        pid, status, used = os.wait4(self.pid, os.WNOHANG)
        if pid:
            code = os.waitstatus_to_exitcode(status)
            # `subprocess` must not look for it any more.
            self._process.returncode = code
            # Linux counts in KiB, macOS in bytes.
            unit = 1 if sys.platform == "darwin" else 1024
            self.end = ProgramEnd(
                exit_code=code,
                cpu_s=used.ru_utime + used.ru_stime,
                rss_bytes=used.ru_maxrss * unit,
            )
        return pid != 0

    def wait_for_output(self, limit_s: float) -> bool:
        """Waits until all output is copied; False if what the program has left behind holds it."""
        return self._output is None or self._output.wait(limit_s)

    def close(self) -> None:
        """Gives signals back."""
        if self._output is not None:
            self._output.line.erase()
        self._signals.__exit__()

    @property
    def has_line(self) -> bool:
        """Whether a line can be shown below its output: on a terminal that moves its cursor."""
        return self._output is not None and self._output.line.is_possible

    def show_line(self, text: str) -> None:
        """Shows it, unless the program is in the middle of a line."""
        if self._output is not None:
            self._output.line.show(text)

    @property
    def unread(self) -> str | None:
        """Why its output is not recorded, or not all of it."""
        return None if self._output is None else self._output.unread


def _program(name: str) -> str:
    """The name as `subprocess` finds it: Windows looks for nothing but .exe by itself."""
    return (shutil.which(name) or name) if sys.platform == "win32" else name


def _not_started(name: str, error: OSError) -> UsageError:
    if isinstance(error, FileNotFoundError) and not os.path.exists(name):
        return UsageError(
            "program-not-found",
            f"there is no program `{name}`.",
            because="it is neither on the PATH nor a file",
            fix=f"flatout watch -- python {name}" if name.endswith(".py") else "check its name",
        )
    return UsageError(
        "program-not-started",
        f"`{name}` could not be started.",
        because=error.strerror or str(error),
        fix=_start_fix(name),
    )


def _start_fix(name: str) -> str:
    if name.endswith(".py"):
        return f"run it with Python: flatout watch -- python {name}"
    if name.endswith(".sh"):
        return f"run it with a shell: flatout watch -- sh {name}"
    return "make it executable (chmod +x), and check the interpreter in its first line"
