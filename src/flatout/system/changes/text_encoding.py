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


class UnreadableText(Exception):
    """A file is malformed, so it must not be rewritten. The text says what is wrong."""


class DecodedText(msgspec.Struct, frozen=True, kw_only=True):
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


def decode(content: bytes) -> DecodedText:
    """A file's text. Bytes other than UTF-8 (an old code page's) come back as they were.

    Raises:
        UnreadableText: it contains zeros, as no text does, or half a letter of UTF-16.
    """
    for mark, encoding in _MARKS:
        if content.startswith(mark):
            return _decoded(content[len(mark) :], encoding, mark)
    # UTF-16 without its mark, as `reg` and some editors write it: half of what is Latin is zero.
    if len(content) >= 2 and content[1::2].count(0) * 2 > len(content[1::2]):
        return _decoded(content, "utf-16-le", b"")
    return _decoded(content, "utf-8", b"")


def _decoded(content: bytes, encoding: Encoding, mark: bytes) -> DecodedText:
    try:
        text = content.decode(encoding, _errors(encoding))
    except UnicodeDecodeError as error:
        raise UnreadableText(f"it is not valid {encoding.upper()}: {error.reason}") from error
    if "\0" in text:
        raise UnreadableText("it contains null bytes")
    return DecodedText(text=text, encoding=encoding, mark=mark)


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
