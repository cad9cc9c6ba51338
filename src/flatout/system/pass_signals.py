"""Signals to this process, for a program that it has started in its place.

The program is in the same process group, so that a terminal's own signals (Ctrl-C, Ctrl-\\, Ctrl-Z,
a hangup) reach it directly, as they would without us: they must not be passed on a second time. A
signal that a process has sent to us alone must be. Linux says which of both it was.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from types import FrameType
from typing import Any

from flatout.system.clock import elapsed_s, sleep_s

_NAMES = ("SIGINT", "SIGQUIT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGBREAK")
_NUMBERS = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]
_POLL_S = 0.02
# Where a system does not wait for signals: how often it is looked at whether it has ended.
_LOOK_S = 0.05
# A program that handles Ctrl-Z does not stop.
_STOP_LIMIT_S = 0.5


class SignalRelay:
    """Takes signals from before a program is started until it has ended.

    What is ignored stays ignored: `nohup` starts programs like that.
    """

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self._early: list[int] = []
        self._pid: int | None = None

    def __enter__(self) -> SignalRelay:
        for number in _NUMBERS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(self, *exception: object) -> None:
        # What comes at the last moment is for no one: the program's number may be another's soon.
        is_blocking, self._pid = self._pid is not None, None
        if sys.platform == "linux" and is_blocking:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, self._blocked())
        for number, before in self._before.items():
            signal.signal(number, before)
        self._before = {}

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self._pid is None:
            self._early.append(number)
        elif sys.platform != "win32" and number != signal.SIGINT:
            # Where no one says who has sent it, Ctrl-C is taken for the terminal's.
            self._send(number)

    def begin(self, pid: int) -> None:
        """From now on signals are for this program."""
        self._pid = pid
        if sys.platform == "linux":
            # Blocked only now: the program must not inherit that.
            signal.pthread_sigmask(signal.SIG_BLOCK, self._blocked())
        for number in self._early:
            self._send(number)

    def _blocked(self) -> set[int]:
        if sys.platform != "linux":
            return set()
        more = {signal.SIGCHLD, signal.SIGWINCH, signal.SIGCONT}
        if signal.getsignal(signal.SIGTSTP) is not signal.SIG_IGN:
            more.add(signal.SIGTSTP)
        return {*self._before, *more}

    def _send(self, number: int) -> None:
        assert self._pid is not None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(self._pid, number)

    def wait(self, process: subprocess.Popen[bytes], limit_s: float) -> int | None:
        """Waits for the program's end or the next signal, which is passed on.

        Returns:
            The signal; None after that time, and where something else has happened.
        """
        if sys.platform == "win32":
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, limit_s))
            return None
        if sys.platform != "linux":
            # Its end is left to who asks what it has used: that is known only once.
            sleep_s(max(0.0, min(limit_s, _LOOK_S)))
            return None
        info = signal.sigtimedwait(self._blocked(), max(0.0, limit_s))
        if info is None or info.si_signo == signal.SIGCHLD:
            return None
        number = info.si_signo
        # Above zero: the kernel, for the terminal, which has sent it to the program, too.
        is_from_process = info.si_code <= 0
        if number != signal.SIGWINCH and (is_from_process or number == signal.SIGCONT):
            self._send(number)
        return number

    def pass_on(self, number: int) -> None:
        """Sends a signal that has needed something else first, as the change of a window's size."""
        self._send(number)

    def stop_with_program(self) -> None:
        """After Ctrl-Z: stops this process too, if the program has stopped."""
        if sys.platform == "win32" or self._pid is None:
            return
        import psutil

        until_s = elapsed_s() + _STOP_LIMIT_S
        with contextlib.suppress(psutil.Error):
            program = psutil.Process(self._pid)
            while program.status() != psutil.STATUS_STOPPED:
                if elapsed_s() > until_s:
                    return
                sleep_s(_POLL_S)
            os.kill(os.getpid(), signal.SIGSTOP)


def end_like(exit_code: int) -> int:
    """Ends this process by the signal that has ended the program, if one has.

    Args:
        exit_code: of the program; below zero for a signal.

    Returns:
        The exit code to end with: as the program's.
    """
    if sys.platform == "win32":
        # Python ends with -1 for what is no number of C's.
        return exit_code - 2**32 if exit_code >= 2**31 else exit_code
    if exit_code >= 0:
        return exit_code
    import resource

    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    # The program has left its core file, if at all.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    with contextlib.suppress(OSError, ValueError):
        signal.signal(-exit_code, signal.SIG_DFL)
    os.kill(os.getpid(), -exit_code)
    return 128 - exit_code
