"""What a program prints, copied byte by byte to where it would have gone, and into a file.

A terminal is replaced by a pseudo-terminal, so that a program draws its bars and colors as ever; a
pipe or a file by a pipe. Where both outputs are the same, they share one, which keeps their order.
Windows has no pseudo-terminal at hand: there a terminal is inherited, and nothing of it is kept.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from flatout.system.clock import elapsed_s

_PIECE_BYTES = 64 * 1024
# A bar of several lines is at the beginning of one only for a moment.
_QUIET_S = 0.25
# Between these a program uses the whole screen. Source: xterm's control sequences, DECSET.
_WHOLE_SCREEN = re.compile(rb"\x1b\[\?(?:1049|1047|47)([hl])")
_ERASE = b"\r\x1b[K"
_LEAST_COLUMNS = 20


class _Stream(NamedTuple):
    """source: what is read; target: where it goes; given: what the program writes to."""

    source: int
    target: int
    given: int
    is_terminal: bool


class BottomLine:
    """A line below a program's output, while that is at the beginning of a line.

    is_possible: whether there is a terminal for it.
    """

    def __init__(self, *, is_possible: bool) -> None:
        self.is_possible = is_possible
        self._lock = threading.Lock()
        self._is_shown = self._is_whole_screen = False
        self._is_at_line_start = True
        self._last_s = 0.0

    def show(self, text: str) -> None:
        """Shows it, or what is now in its place, unless the program is in the middle of a line."""
        if not self.is_possible:
            return
        with self._lock:
            is_free = self._is_at_line_start and not self._is_whole_screen
            if not is_free or elapsed_s() - self._last_s < _QUIET_S or not _is_foreground():
                return
            columns = _columns()
            if columns >= _LEAST_COLUMNS:
                # The cursor stays at the beginning: what is typed is shown from there.
                line = _ERASE + text[: columns - 1].encode() + b"\r"
                self._is_shown = _write_whole(2, line)

    def erase(self) -> None:
        """Removes it."""
        with self._lock:
            self._erase()

    def give_way(self, piece: bytes) -> None:
        """Removes it for what the program is about to print."""
        with self._lock:
            self._erase()
            self._is_at_line_start = piece.endswith(b"\n")
            self._last_s = elapsed_s()
            for found in _WHOLE_SCREEN.finditer(piece):
                self._is_whole_screen = found[1] == b"h"

    def _erase(self) -> None:
        if self._is_shown:
            self._is_shown = False
            _write_whole(2, _ERASE)


class OutputCopy:
    """Both outputs of a program that is about to be started.

    Args:
        log: the file for what it prints; made now.
        targets: the descriptors of stdout and stderr that it would have had.

    stdout, stderr: what the program is given; None where it inherits ours. line: below its output.
    """

    def __init__(self, log: Path, targets: tuple[int, int] = (1, 2)) -> None:
        self._log: int | None = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        self._streams: list[_Stream] = []
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        # Why the log is not complete.
        self.unread: str | None = None
        self.stdout = self._open(targets[0])
        self.stderr = self.stdout
        if not _is_same(*targets):
            self.stderr = self._open(targets[1])
        is_one_terminal = len(self._streams) == 1 and all(map(os.isatty, targets))
        self.line = BottomLine(is_possible=is_one_terminal and _can_move_cursor())
        if self.stdout is None and self.stderr is None:
            self._close_log()

    def _open(self, target: int) -> int | None:
        if os.isatty(target):
            if sys.platform == "win32":
                self.unread = (
                    "the program prints to the terminal itself: Windows has no "
                    "pseudo-terminal here; redirect it to record it"
                )
                return None
            source, given = _open_terminal(target)
        else:
            source, given = os.pipe()
        self._streams.append(_Stream(source, target, given, os.isatty(target)))
        return given

    def begin(self) -> None:
        """Begins to copy, once the program has been started."""
        for stream in self._streams:
            os.close(stream.given)
            thread = threading.Thread(target=self._copy, args=(stream,), daemon=True)
            thread.start()
            self._threads.append(thread)

    def cancel(self) -> None:
        """Closes everything: the program could not be started."""
        for stream in self._streams:
            os.close(stream.given)
            os.close(stream.source)
        self._close_log()

    def wait(self, limit_s: float) -> bool:
        """Waits until everything is copied; False if another process still holds an output."""
        until_s = elapsed_s() + limit_s
        for thread in self._threads:
            thread.join(max(0.0, until_s - elapsed_s()))
        if any(thread.is_alive() for thread in self._threads):
            return False
        self._close_log()
        return True

    def _copy(self, stream: _Stream) -> None:
        while True:
            try:
                piece = os.read(stream.source, _PIECE_BYTES)
            except OSError:  # Linux, once no process has the pseudo-terminal open.
                break
            if not piece or not self._write(stream, piece):
                break
        # A program whose reader is gone finds out when it writes, as it would without us.
        os.close(stream.source)

    def _write(self, stream: _Stream, piece: bytes) -> bool:
        with self._lock:
            self._keep(piece)
        if stream.is_terminal:
            self.line.give_way(piece)
        # Not under the lock: the reader of one output may be slow.
        return _write_whole(stream.target, piece)

    def _keep(self, piece: bytes) -> None:
        if self._log is None:
            return
        try:
            _write_log(self._log, piece)
        except OSError as error:
            # It costs the record its text, not the program its work.
            self.unread = f"it is cut off: {error.strerror}"
            self._close_log()

    def _close_log(self) -> None:
        if self._log is not None:
            os.close(self._log)
            self._log = None

    def follow_size(self) -> bool:
        """Gives pseudo-terminals the present size of the window; whether there are any."""
        for stream in self._streams:
            if stream.is_terminal:
                with contextlib.suppress(OSError):
                    _copy_size(stream.target, stream.source)
        return any(stream.is_terminal for stream in self._streams)


def _can_move_cursor() -> bool:
    return os.environ.get("TERM", "dumb") not in ("dumb", "unknown", "")


def _is_same(first: int, second: int) -> bool:
    """Whether two descriptors lead to the same file, pipe or terminal."""
    if sys.platform == "win32" and not os.isatty(first):
        # A pipe has no number there.
        return False
    try:
        return os.path.sameopenfile(first, second)
    except OSError:
        return False


def _open_terminal(like: int) -> tuple[int, int]:
    """A pseudo-terminal: our end and the program's, which adds nothing to what is written."""
    if sys.platform == "win32":
        raise OSError("Windows has no pseudo-terminals of this kind")
    import termios

    ours, theirs = os.openpty()
    with contextlib.suppress(OSError):
        _copy_size(like, theirs)
    with contextlib.suppress(termios.error):
        attributes = termios.tcgetattr(like)
        # The real terminal does what has to be done to the end of a line.
        attributes[1] &= ~termios.OPOST
        termios.tcsetattr(theirs, termios.TCSANOW, attributes)
    return ours, theirs


def _copy_size(source: int, target: int) -> None:
    if sys.platform != "win32":
        import fcntl
        import termios

        size = fcntl.ioctl(source, termios.TIOCGWINSZ, b"\0" * 8)
        fcntl.ioctl(target, termios.TIOCSWINSZ, size)


def _is_foreground() -> bool:
    """Whether the terminal is ours: not that of a shell that has put us into the background."""
    if sys.platform == "win32":
        return True
    try:
        return os.tcgetpgrp(2) == os.getpgrp()
    except OSError:
        # A terminal that controls no one, as Docker gives it.
        return True


def _columns() -> int:
    try:
        return os.get_terminal_size(2).columns
    except OSError:
        return 0


def _write_log(log: int, piece: bytes) -> None:
    while piece:
        piece = piece[os.write(log, piece) :]


def _write_whole(target: int, piece: bytes) -> bool:
    """Writes all of it, however slow the reader is; False once it is gone."""
    while piece:
        try:
            piece = piece[os.write(target, piece) :]
        except BlockingIOError:
            # Whoever has started us wants no write to wait.
            _wait_writable([target])
        except OSError:
            return False
    return True


def _wait_writable(targets: Sequence[int]) -> None:
    if sys.platform != "win32":
        select.select([], targets, [], 1.0)
