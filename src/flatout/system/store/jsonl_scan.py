"""Some lines of a JSONL file that may be longer than memory: most of it is never decoded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from flatout.system.atomic_files import decode_line, mapped_os_errors, open_file

# What is done to a block keeps other threads waiting: a few milliseconds.
_BLOCK_BYTES = 2**20
_END_BYTES = 64 * 2**10


def each_line(path: Path, kind: Any, words: Sequence[bytes] = (b"",)) -> Iterator[Any]:
    """The whole lines that hold one of these words, oldest first; none of a missing file."""
    decoder = msgspec.json.Decoder(kind)
    for block, _ in _blocks(path, 0):
        for line in _lines_with(block, words):
            yield decode_line(decoder, line, path)


def each_part(
    path: Path, kind: Any, words: Sequence[bytes], offset: int
) -> Iterator[tuple[list[Any], int]]:
    """The same in parts: the lines of each, and the byte behind the last line that was looked at.

    offset: that byte of an earlier call, or 0; lines before it are left out.
    """
    decoder = msgspec.json.Decoder(kind)
    for block, end in _blocks(path, offset):
        yield [decode_line(decoder, line, path) for line in _lines_with(block, words)], end


def last_line(path: Path, kind: Any, word: bytes = b"") -> Any | None:
    """The last whole line that holds this word, or None; read from the file's end."""
    with mapped_os_errors(path):
        try:
            size_bytes = path.stat().st_size
            num_bytes = _END_BYTES
            while True:
                with open_file(path) as file:
                    start = max(0, size_bytes - num_bytes)
                    file.seek(start)
                    end = file.read(size_bytes - start)
                whole = end[: end.rfind(b"\n") + 1]
                lines = whole.splitlines()[1 if start else 0 :]
                match = next((line for line in reversed(lines) if word in line), None)
                if match is not None:
                    return decode_line(msgspec.json.Decoder(kind), match, path)
                if start == 0:
                    return None
                num_bytes *= 8
        except FileNotFoundError:
            return None


def _blocks(path: Path, offset: int) -> Iterator[tuple[bytes, int]]:
    """The file in pieces of whole lines, and where each ends; a torn last line is missing.

    offset: of the line to begin with, or in the line before it.
    """
    with mapped_os_errors(path):
        try:
            file = open_file(path)
        except FileNotFoundError:
            return
        with file:
            if offset:
                file.seek(offset - 1)
                file.readline()
            while block := file.read(_BLOCK_BYTES):
                block += file.readline()
                if whole := block[: block.rfind(b"\n") + 1]:
                    yield whole, file.tell() - len(block) + len(whole)
                if len(whole) < len(block):
                    return  # Once that line is complete, its rest would be read as one of its own.


def _lines_with(block: bytes, words: Sequence[bytes]) -> Iterator[bytes]:
    if b"" in words:
        yield from block.splitlines()
        return
    # Searched in the block as a whole: a thousand times quicker than a look at every line.
    starts = set()
    for word in words:
        at = block.find(word)
        while at >= 0:
            starts.add(block.rfind(b"\n", 0, at) + 1)
            at = block.find(word, block.find(b"\n", at))
    for start in sorted(starts):
        yield block[start : block.find(b"\n", start)]
