"""A file of machine samples, one per line: appended to by one process, read by any."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from flatout.schema.machine_sample import MachineSample
from flatout.system.atomic_files import Lines, mapped_os_errors, open_file


class SampleFile:
    """Appends samples to a file, which is made if missing; a torn last line is cut off first."""

    def __init__(self, path: Path) -> None:
        self._lines = Lines(path)

    def __enter__(self) -> SampleFile:
        return self

    def __exit__(self, *exception: object) -> None:
        self._lines.close()

    def append(self, sample: MachineSample) -> None:
        """Adds a sample in one write."""
        self._lines.append(sample)


def read_samples(path: Path) -> Iterator[MachineSample]:
    """The samples of a file, oldest first; none of a missing file.

    A line that is torn or damaged is left out: its neighbours say nearly the same.
    """
    with mapped_os_errors(path):
        try:
            file = open_file(path)
        except FileNotFoundError:
            return
        with file:
            yield from _decoded(file)


class SampleTail:
    """The new samples of a file at each call, while another process writes it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def new_samples(self) -> list[MachineSample]:
        """Whole lines that were written since the last call."""
        with mapped_os_errors(self._path):
            try:
                with open_file(self._path) as file:
                    file.seek(self._offset)
                    content = file.read()
            except FileNotFoundError:
                return []
        whole = content[: content.rfind(b"\n") + 1]
        self._offset += len(whole)
        return list(_decoded(whole.splitlines()))


def _decoded(lines: Iterable[bytes]) -> Iterator[MachineSample]:
    decoder = msgspec.json.Decoder(MachineSample)
    for line in lines:
        try:
            yield decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
