"""Text that someone has, as bytes, a piece at a time: it may be longer than memory."""

from __future__ import annotations

import gzip
import os
import stat
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from flatout.errors import UsageError
from flatout.system.atomic_files import mapped_os_errors

_PIECE_BYTES = 1 << 20
_GZIP = b"\x1f\x8b"


def is_readable(path: Path) -> bool:
    """Whether there is a file or a pipe, such as the shell's `<(dmesg)`, of that name."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        # Also for what can be no name: a text that was pasted, say.
        return False
    return stat.S_ISREG(mode) or stat.S_ISFIFO(mode)


def pieces_of(path: Path) -> Iterator[bytes]:
    """A file's bytes.

    Raises:
        UsageError, RunFailed: as the operating system says it.
    """
    with mapped_os_errors(path), open(path, "rb") as file:
        while piece := file.read(_PIECE_BYTES):
            yield piece


def pieces_of_log(path: Path) -> Iterator[bytes]:
    """A log's bytes, decompressed where it was rotated (`syslog.2.gz`).

    Raises:
        UsageError: log-not-readable; and what the operating system says.
        RunFailed: as the operating system says it.
    """
    with mapped_os_errors(path), open(path, "rb") as file:
        if file.peek(len(_GZIP))[: len(_GZIP)] == _GZIP:
            yield from _decompressed(file, path)
            return
        while piece := file.read(_PIECE_BYTES):
            yield piece


def _decompressed(file: BinaryIO, path: Path) -> Iterator[bytes]:
    try:
        with gzip.GzipFile(fileobj=file) as content:
            while piece := content.read1(_PIECE_BYTES):
                yield piece
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UsageError(
            "log-not-readable",
            f"{path} cannot be decompressed.",
            because=" ".join(str(error).split()),
            fix="get a complete copy, or decompress what can be read: gzip -dc < FILE > TEXT",
        ) from error


def end_of(path: Path, num_bytes: int) -> bytes:
    """The last bytes of a file.

    Raises:
        UsageError, RunFailed: as the operating system says it.
    """
    with mapped_os_errors(path), open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - num_bytes))
        return file.read()


def pieces_of_stdin() -> Iterator[bytes]:
    """Piped input; nothing from a terminal, which would wait for someone to type."""
    if sys.stdin is None or sys.stdin.isatty():
        return
    while piece := sys.stdin.buffer.read(_PIECE_BYTES):
        yield piece


def write(path: Path, text: str) -> None:
    """Writes a file as UTF-8.

    Raises:
        UsageError, RunFailed: as the operating system says it.
    """
    with mapped_os_errors(path):
        path.write_text(text, encoding="utf-8", newline="\n")


def write_new(path: Path, text: str) -> bool:
    """Writes a file as UTF-8; False, and nothing written, where there is one of that name.

    Raises:
        UsageError, RunFailed: as the operating system says it.
    """
    with mapped_os_errors(path):
        try:
            with open(path, "x", encoding="utf-8", newline="\n") as file:
                file.write(text)
        except FileExistsError:
            return False
    return True
