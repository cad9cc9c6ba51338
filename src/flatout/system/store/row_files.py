"""Files of predictions, written row by row: whole when they are closed, or not at all."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec

from flatout.errors import UsageError
from flatout.system.atomic_files import mapped_os_errors, move_into_place, part_path, sync_file

_NPY_HEADER_BYTES = 128


class RowFile(Protocol):
    """A file that grows by rows and appears when it is closed."""

    def append(self, row: Mapping[str, Any]) -> None:
        """Adds a row: names and values of JSON's own kinds."""
        ...

    def close(self, *, is_whole: bool) -> None:
        """Puts the file in its place, or removes what there is of it."""
        ...


class JsonRows:
    """A JSON document on each line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._encoder = msgspec.json.Encoder()
        with mapped_os_errors(path):
            self._file = open(part_path(path), "wb")

    def append(self, row: Mapping[str, Any]) -> None:
        """See RowFile."""
        with mapped_os_errors(self._path):
            self._file.write(self._encoder.encode(row) + b"\n")

    def close(self, *, is_whole: bool) -> None:
        """See RowFile."""
        _close(self._file, self._path, is_whole)


class CsvRows:
    """Comma-separated values; the first row decides the columns. A list is a column for each."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with mapped_os_errors(path):
            self._file = open(part_path(path), "w", newline="", encoding="utf-8")
        self._writer: csv.DictWriter[str] | None = None

    def append(self, row: Mapping[str, Any]) -> None:
        """See RowFile. A value that a row does not have is an empty place.

        Raises:
            UsageError: output-cannot-hold-it.
        """
        flat = _flat(row)
        with mapped_os_errors(self._path):
            if self._writer is None:
                self._writer = csv.DictWriter(self._file, list(flat))
                self._writer.writeheader()
            others = [name for name in flat if name not in self._writer.fieldnames]
            if others:
                raise UsageError(
                    "output-cannot-hold-it",
                    "these predictions have different columns.",
                    because=f"the first has no `{others[0]}`",
                    fix="write them as .jsonl",
                )
            self._writer.writerow(flat)

    def close(self, *, is_whole: bool) -> None:
        """See RowFile."""
        _close(self._file, self._path, is_whole)


class NpyRows:
    """One array in NumPy's format, whose first dimension grows.

    Source: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html, version 1.0.

    Args:
        path: the file.
        dtype: of the numbers, as NumPy writes it: `<f4`.
        row_shape: of what is appended each time.
    """

    def __init__(self, path: Path, dtype: str, row_shape: tuple[int, ...]) -> None:
        self._path = path
        self._dtype = dtype
        self._row_shape = row_shape
        self._num_rows = 0
        with mapped_os_errors(path):
            self._file = open(part_path(path), "wb")
            self._file.write(self._header())

    def append_bytes(self, content: bytes, num_rows: int) -> None:
        """Adds rows as they are in memory, the last dimension fastest."""
        with mapped_os_errors(self._path):
            self._file.write(content)
        self._num_rows += num_rows

    def close(self, *, is_whole: bool) -> None:
        """Writes how many rows it became, and see RowFile."""
        if is_whole:
            with mapped_os_errors(self._path):
                self._file.seek(0)
                self._file.write(self._header())
        _close(self._file, self._path, is_whole)

    def _header(self) -> bytes:
        shape = (self._num_rows, *self._row_shape)
        text = f"{{'descr': '{self._dtype}', 'fortran_order': False, 'shape': {shape}, }}"
        # Of one length, whatever the numbers: it is written again at the end.
        room = _NPY_HEADER_BYTES - 10
        return b"\x93NUMPY\x01\x00" + room.to_bytes(2, "little") + f"{text:<{room - 1}}\n".encode()


def _close(file: Any, path: Path, is_whole: bool) -> None:
    with mapped_os_errors(path):
        file.close()
        if is_whole:
            sync_file(part_path(path))
            move_into_place(part_path(path), path)
        else:
            part_path(path).unlink(missing_ok=True)


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row without lists: `prediction` of three numbers becomes `prediction_1` and so on."""
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, list):
            flat |= _flat({f"{name}_{number + 1}": item for number, item in enumerate(value)})
        else:
            flat[name] = value
    return flat
