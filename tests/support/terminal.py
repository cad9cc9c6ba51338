"""A terminal without a window: the output of a command on 80 columns, with colors and timing.

POSIX only: with a pseudo-terminal, a program prints as for a person.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

COLUMNS, ROWS = 80, 40
LIMIT_S = 900.0
# A control sequence, a line's end, or a sign to be shown.
_TOKEN = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|\x1b[()][A-Z0-9]|(\r?\n)|(\r)|(.)", re.DOTALL)
_WORD = re.compile(r"\w+")
# What is there to be copied is never broken: commands, addresses, paths.
_COPIED = re.compile(
    r"^\s*(?:\S+:\s+|next\s+)?(?:\S*flatout|python3?|pip|sh|cd|\$) |https?://\S{40}|/\S{60}"
)


@dataclass(frozen=True)
class Played:
    """A command that was run on a terminal.

    lines: of the screen and its scrollback, as text. ansi: the same with colors.
    """

    command: str
    exit_code: int
    seconds: float
    lines: tuple[str, ...]
    ansi: tuple[str, ...]


def play(
    argv: Sequence[str], folder: Path, environment: Mapping[str, str], *, shown: str = ""
) -> Played:
    """Runs a command on a terminal of 80 columns, to its end.

    Raises:
        TimeoutError: it takes too long.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    dropped = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")
    kept = {name: value for name, value in environment.items() if name not in dropped}
    began_s = time.monotonic()
    process = subprocess.Popen(
        list(argv), cwd=folder, env={**kept, "TERM": "xterm-256color"},
        stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    try:
        written = _read(ours, began_s + LIMIT_S)
        exit_code = process.wait(timeout=120)
    finally:
        process.kill()
        os.close(ours)
    seconds = time.monotonic() - began_s
    screen = Screen()
    screen.take(written.decode(errors="replace"))
    return Played(shown or " ".join(argv), exit_code, seconds, screen.text(), screen.ansi())


def _read(terminal: int, until_s: float) -> bytes:
    written = b""
    while time.monotonic() < until_s:
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # Linux reports this error once no process has it open.
            return written
        if not piece:
            return written
        written += piece
    raise TimeoutError("the command has not ended")


@dataclass
class Screen:
    """The lines as they look when everything is printed, without overwritten ones."""

    _rows: list[list[tuple[str, str]]] = field(default_factory=lambda: [[]])
    _row: int = 0
    _column: int = 0
    _style: str = ""

    def take(self, written: str) -> None:
        """Prints characters, line ends, colors, and the cursor movements that rich uses."""
        for found in _TOKEN.finditer(written):
            numbers, letter, newline, back, sign = found.groups()
            if letter == "m":
                self._style = "" if numbers in ("", "0") else self._style + f"\x1b[{numbers}m"
            elif letter == "A":
                self._row = max(0, self._row - int(numbers or 1))
            elif letter == "K":
                self._rows[self._row] = []
            elif newline:
                self._row, self._column = self._row + 1, 0
                if self._row == len(self._rows):
                    self._rows.append([])
            elif back:
                self._column = 0
            elif sign:
                self._put(sign)

    def _put(self, sign: str) -> None:
        row = self._rows[self._row]
        row += [(" ", "")] * (self._column + 1 - len(row))
        row[self._column] = (sign, self._style)
        self._column += 1

    def text(self) -> tuple[str, ...]:
        """The lines without colors."""
        return tuple("".join(sign for sign, _ in row).rstrip() for row in self._rows)

    def ansi(self) -> tuple[str, ...]:
        """The lines with colors."""
        return tuple(
            "".join(f"{style}{sign}\x1b[0m" if style else sign for sign, style in row)
            for row in self._rows
        )


def too_long(lines: Sequence[str]) -> list[str]:
    """Lines that a terminal would break, except lines meant to be copied."""
    return [line for line in lines if len(line) > COLUMNS and not _COPIED.search(line)]


def broken_words(lines: Sequence[str], words: set[str]) -> list[str]:
    """Words split between the end of a line and the start of the next.

    words: the valid ones.
    """
    found = []
    for line, following in zip(lines, lines[1:], strict=False):
        end, begin = re.search(r"\w+$", line), re.search(r"^\s*(\w+)", following)
        if len(line) < COLUMNS - 20 or end is None or begin is None:
            continue
        left, right = end[0], begin[1]
        if left + right in words and not {left, right} <= words:
            found.append(f"{left}/{right}")
    return found


def known_words(sources: Sequence[Path]) -> set[str]:
    """All words of some files."""
    return {word for path in sources for word in _WORD.findall(path.read_text(encoding="utf-8"))}


def clean_environment(home: Path, source: Path | None = None) -> dict[str, str]:
    """The variables of a user with an empty home; source: of another flatout."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FLATOUT_")}
    kept = {name: value for name, value in kept.items() if not name.startswith("XDG_")}
    programs = str(Path(sys.executable).parent)
    path = os.pathsep.join([programs, kept.get("PATH", "")])
    own = {"HOME": str(home), "PATH": path}
    return {**kept, **own, **({"PYTHONPATH": str(source)} if source else {})}
