"""A program on a terminal of its own, as a person's shell would start it: keys, size, job control.

POSIX only.
"""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import termios
import time
from collections.abc import Mapping, Sequence


class ControllingTerminal:
    """A program as the leader of a session whose terminal this is.

    written: all that has come from it so far.
    """

    def __init__(
        self, argv: Sequence[str], environment: Mapping[str, str], size: tuple[int, int] = (24, 80)
    ) -> None:
        self.written = b""
        self._at = 0
        self._status: int | None = None
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            os.execvpe(argv[0], list(argv), dict(environment))
        self.resize(*size)

    def __enter__(self) -> ControllingTerminal:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._status is None:
            os.kill(self.pid, 9)
            os.waitpid(self.pid, 0)
        os.close(self._terminal)

    def resize(self, rows: int, columns: int) -> None:
        """Changes the size of the window, of which the foreground is notified."""
        size = struct.pack("HHHH", rows, columns, 0, 0)
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, size)

    def type(self, keys: bytes) -> None:
        """Presses keys: b"\\x03" is Ctrl-C."""
        os.write(self._terminal, keys)

    def expect(self, text: bytes, limit_s: float = 120.0) -> None:
        """Waits until that text was written, after what was expected before."""
        until_s = time.monotonic() + limit_s
        while (found := self.written.find(text, self._at)) < 0:
            assert time.monotonic() < until_s, f"no {text!r} in {self.written!r}"
            assert self._read(0.1), f"it ended without {text!r}: {self.written!r}"
        self._at = found + len(text)

    def _read(self, limit_s: float) -> bool:
        """Reads what is there; False at the end."""
        if not select.select([self._terminal], [], [], limit_s)[0]:
            return True
        try:
            piece = os.read(self._terminal, 65536)
        except OSError:  # Linux, when no process has it open.
            return False
        self.written += piece
        return bool(piece)

    def finish(self, limit_s: float = 120.0) -> int:
        """Reads to the end; gives the exit code, below zero for a signal."""
        until_s = time.monotonic() + limit_s
        while self._read(0.1):
            assert time.monotonic() < until_s, f"it does not end: {self.written!r}"
        _, status = os.waitpid(self.pid, 0)
        self._status = status
        return os.waitstatus_to_exitcode(status)
