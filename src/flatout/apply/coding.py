"""Text files as lines, and back to the very same bytes: encoding, mark, line ends."""

from __future__ import annotations

import codecs
import re
from typing import Literal

import msgspec

Encoding = Literal["utf-8", "utf-16-le", "utf-16-be"]

_MARKS: tuple[tuple[bytes, Encoding], ...] = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


class Unreadable(Exception):
    """A file is not what it should be, so nobody may write it anew. The text says what is wrong."""


class Text(msgspec.Struct, frozen=True, kw_only=True):
    """A text file's content. mark: the byte order mark that it begins with."""

    text: str
    encoding: Encoding = "utf-8"
    mark: bytes = b""

    @property
    def newline(self) -> str:
        """The line end of most of its lines."""
        num_windows = self.text.count("\r\n")
        return "\r\n" if 2 * num_windows > self.text.count("\n") else "\n"

    def encoded(self) -> bytes:
        """The file's bytes."""
        return self.mark + self.text.encode(self.encoding, _errors(self.encoding))


def decode(content: bytes) -> Text:
    """A file's text. Bytes that are no UTF-8 (an old code page's) come back as they were.

    Raises:
        Unreadable: it holds zeros, as no text does, or half a letter of UTF-16.
    """
    for mark, encoding in _MARKS:
        if content.startswith(mark):
            return _decoded(content[len(mark) :], encoding, mark)
    # UTF-16 without its mark, as `reg` and some editors write it: half of what is Latin is zero.
    if len(content) >= 2 and content[1::2].count(0) * 2 > len(content[1::2]):
        return _decoded(content, "utf-16-le", b"")
    return _decoded(content, "utf-8", b"")


def _decoded(content: bytes, encoding: Encoding, mark: bytes) -> Text:
    try:
        text = content.decode(encoding, _errors(encoding))
    except UnicodeDecodeError as error:
        raise Unreadable(f"it is no text in {encoding.upper()}: {error.reason}") from error
    if "\0" in text:
        raise Unreadable("it holds zeros, which no text does")
    return Text(text=text, encoding=encoding, mark=mark)


def _errors(encoding: Encoding) -> str:
    return "surrogateescape" if encoding == "utf-8" else "strict"


def lines_of(text: str) -> list[str]:
    """The lines, each with its end; unlike str.splitlines, only where an editor sees one."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def line_end(line: str) -> str:
    """The end of a line: a newline, Windows' two signs, or nothing."""
    if line.endswith("\r\n"):
        return "\r\n"
    return "\n" if line.endswith("\n") else ""
