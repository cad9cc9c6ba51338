"""The files of a source that should be ingested: found, stamped and read, never written."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import BinaryIO

import msgspec

from flatout.system.atomic_files import mapped_os_errors

# No more of a line is held in memory: a file may be a single one.
_LONGEST_PART_BYTES = 2**20


class SourceFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file below a source. name: with `/`, whatever the system; modified_ns: its time."""

    name: str
    size_bytes: int
    modified_ns: int

    @property
    def folder(self) -> str:
        """The folder right below the source that it is in; empty if it is in none."""
        parts = PurePosixPath(self.name).parts
        return parts[0] if len(parts) > 1 else ""


def files_below(source: Path) -> list[SourceFile]:
    """All files of a folder, sorted by name, but for hidden ones; or the one that it is."""
    files = []
    with mapped_os_errors(source):
        if not source.is_dir():
            return [_file(source, source.name)]
        for folder, inner, names in os.walk(source):
            inner[:] = [name for name in inner if not _is_hidden(name)]
            below = Path(folder).relative_to(source)
            files += [
                _file(Path(folder, name), (below / name).as_posix())
                for name in names
                if not _is_hidden(name)
            ]
    return sorted(files, key=lambda file: file.name)


def path_of(source: str, name: str) -> Path:
    """The path of a file of the source; the source may be that file itself."""
    path = Path(source)
    return path / name if path.is_dir() else path


def stamp(files: Sequence[SourceFile], *more: object) -> str:
    """Another one where a file was added, removed or written."""
    states = [(file.name, file.size_bytes, file.modified_ns) for file in files]
    return hashlib.sha256(repr((states, more)).encode()).hexdigest()


def content(path: Path) -> bytes:
    """A whole file."""
    with mapped_os_errors(path):
        return path.read_bytes()


def lines_from(path: Path, begin: int) -> Iterator[tuple[int, bytes]]:
    """The lines that begin at this byte or behind it, with their places; long ones in parts."""
    with mapped_os_errors(path), open(path, "rb") as file:
        position = _next_line(file, begin)
        while line := file.readline(_LONGEST_PART_BYTES):
            yield position, line
            position += len(line)


def _next_line(file: BinaryIO, begin: int) -> int:
    if begin:
        file.seek(begin - 1)
        while (line := file.readline(_LONGEST_PART_BYTES)) and not line.endswith(b"\n"):
            continue
    return file.tell()


def _file(path: Path, name: str) -> SourceFile:
    status = path.stat()
    return SourceFile(name=name, size_bytes=status.st_size, modified_ns=status.st_mtime_ns)


def _is_hidden(name: str) -> bool:
    return name.startswith((".", "__MACOSX"))
