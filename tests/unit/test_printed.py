"""Lines of what a process prints, and progress bars, which have none."""

from __future__ import annotations

import io
from typing import Any

from flatout.system.progress_output import printed_lines


class Pieces(io.RawIOBase):
    """Gives a text in small pieces, as a pipe may."""

    def __init__(self, text: bytes) -> None:
        self._rest = text

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece, self._rest = self._rest[:3], self._rest[3:]
        buffer[: len(piece)] = piece
        return len(piece)


def lines_of(text: bytes, bar_every_s: float = 0.0) -> list[bytes]:
    return list(printed_lines(io.BufferedReader(Pieces(text)), bar_every_s))


def test_lines_end_as_they_were_ended() -> None:
    assert lines_of(b"one\ntwo\r\n\nlast") == [b"one\n", b"two\r\n", b"\n", b"last"]


def test_a_progress_bar_is_shown_before_it_ends_its_line() -> None:
    bar = b"".join(b"\r%3d%%" % percent for percent in range(100)) + b"\r100%\n"
    assert lines_of(bar)[:2] == [b"  0%\r", b"  1%\r"]
    assert lines_of(bar, bar_every_s=60.0) == [b"  0%\r", b"100%\n"]


def test_what_never_ends_its_line_is_not_collected_for_ever() -> None:
    text = b"x" * 500_000
    pieces = list(printed_lines(io.BufferedReader(io.BytesIO(text))))
    assert b"".join(pieces) == text and max(map(len, pieces)) < 1 << 17
