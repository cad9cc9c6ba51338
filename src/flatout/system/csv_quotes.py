"""Quotes in CSV files: a stray quote turns all rows up to the next quote into one value."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from flatout.system.source_path import library

# A longer value means a stray quote, which would silently swallow these rows.
MOST_LINES = 1000
_MOST_BYTES = 2**20
_BLOCK_BYTES = 2**20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class StrayQuote(ValueError):
    """A quote that is never closed, or closed too far away."""


def check_quotes(blocks: Iterable[bytes], delimiter: str) -> None:
    """Refuses a quoted value that does not end, or is too long for a table.

    Quotes count as pyarrow counts them: one inside an unquoted value is a letter like any other.

    Args:
        blocks: the file's bytes, decompressed, from the beginning.
        delimiter: the character between two values.

    Raises:
        StrayQuote: with the line in which the value begins.
    """
    opens = rb"[" + re.escape(delimiter.encode()) + rb"\r\n]"
    quoted = re.compile(opens + rb'"([^"]*(?:""[^"]*)*)("?)')
    # So that a value at the very beginning also has a line end before it.
    rest = b"\n"
    line = 0
    for number, block in enumerate(blocks):
        content = rest + (block if number else block.removeprefix(_BYTE_ORDER_MARK))
        done = len(content) - 1
        if b'"' in content:
            for match in quoted.finditer(content):
                _check_length(match[1], content, match.start(), line)
                if not match[2] or match.end() == len(content):
                    # Its end may be in the next block.
                    done = match.start()
                    break
        line += _num_lines(content[:done])
        rest = content[done:]
    last = quoted.match(rest)
    if last and not last[2]:
        raise StrayQuote(f"the quote that opens in line {_line_at(rest, 0, line)} is never closed")


def blocks_of(path: Path) -> Iterator[bytes]:
    """A file's bytes, decompressed as pyarrow does it, by its name."""
    arrow = library("pyarrow", package="pyarrow")
    with arrow.input_stream(str(path)) as stream:
        while block := stream.read(_BLOCK_BYTES):
            yield block


def _check_length(value: bytes, content: bytes, position: int, line: int) -> None:
    if len(value) <= MOST_LINES:
        return
    if len(value) > _MOST_BYTES or _num_lines(value) > MOST_LINES:
        raise StrayQuote(
            f"the quote that opens in line {_line_at(content, position, line)} closes more than "
            f"{MOST_LINES:,} lines or {_MOST_BYTES // 2**20} MiB later, if at all"
        )


def _line_at(content: bytes, position: int, line: int) -> int:
    """The line of the value at this position; `line` line ends precede the content."""
    return line + _num_lines(content[: position + 1])


def _num_lines(content: bytes) -> int:
    return max(content.count(b"\n"), content.count(b"\r"))
