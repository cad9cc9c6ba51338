"""Destinations of predictions: lines to the parent process, a file, or a folder with images."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from flatout.engine.predict.inputs import Row
from flatout.engine.predict.rows import is_picture, rows_of
from flatout.errors import UsageError
from flatout.schema.predict_protocol import ROWS_IN_FOLDER, Predicted, Reply
from flatout.system import atomic_files
from flatout.system.store.row_files import CsvRows, JsonRows, NpyRows, RowFile

_NPY_TYPES = {
    torch.float32: "<f4", torch.float64: "<f8", torch.int64: "<i8", torch.int32: "<i4",
    torch.int16: "<i2", torch.int8: "|i1", torch.uint8: "|u1", torch.bool: "|b1",
}  # fmt: skip


class Output(Protocol):
    """Takes predictions batch by batch."""

    path: Path | None

    def take(self, rows: list[Row], predictions: Any) -> None:
        """Takes the predictions of a batch, in order."""
        ...

    def close(self, *, is_whole: bool) -> None:
        """Puts what was written in its place, or removes it."""
        ...


class RowFormat:
    """The form of a prediction as a row. labels: of the classes; top: number of classes listed."""

    def __init__(self, labels: Sequence[str] | None, top: int) -> None:
        self._labels = labels
        self._top = top

    def rows(self, rows: list[Row], predictions: Any) -> list[Predicted]:
        """A line for each sample."""
        values = rows_of(predictions, len(rows), self._labels, self._top)
        return [
            Predicted(input=text, row=row, values=row_values)
            for (text, row), row_values in zip(rows, values, strict=True)
        ]


def open_output(
    text: str | None, inputs: Sequence[str], row_format: RowFormat, send: Callable[[Reply], None]
) -> Output:
    """Opens the destination of predictions.

    Args:
        text: a file or folder; None sends them to the parent process.
        inputs: what was typed; none of these may be written over.
        row_format: turns them into rows.
        send: sends a line to the parent process.

    Raises:
        UsageError: output-is-an-input.
    """
    if text is None:
        return _LineOutput(row_format, send)
    path = Path(text).expanduser().absolute()
    input_paths = {Path(name).absolute() for name in inputs}
    _refuse_input(path, input_paths)
    if path.suffix == ".npy":
        return _Array(path)
    if path.suffix in (".jsonl", ".csv"):
        file: RowFile = JsonRows(path) if path.suffix == ".jsonl" else CsvRows(path)
        return _Rows(path, row_format, file)
    return _Folder(path, row_format, input_paths)


def _refuse_input(path: Path, input_paths: set[Path]) -> None:
    if path in input_paths:
        raise UsageError(
            "output-is-an-input",
            f"the predictions would overwrite the input {path}.",
            fix="choose another --output",
        )


class _LineOutput:
    """Every prediction is a line."""

    def __init__(self, row_format: RowFormat, send: Callable[[Reply], None]) -> None:
        self.path: Path | None = None
        self._row_format = row_format
        self._send = send

    def take(self, rows: list[Row], predictions: Any) -> None:
        for line in self._row_format.rows(rows, predictions):
            _refuse_pictures(line)
            self._send(line)

    def close(self, *, is_whole: bool) -> None:
        pass


class _Rows:
    """Every prediction is a row of a file."""

    def __init__(self, path: Path, row_format: RowFormat, file: RowFile) -> None:
        self.path: Path | None = path
        self._row_format = row_format
        self._file = file

    def take(self, rows: list[Row], predictions: Any) -> None:
        for line in self._row_format.rows(rows, predictions):
            _refuse_pictures(line)
            self._file.append({"input": line.input, "row": line.row, **line.values})

    def close(self, *, is_whole: bool) -> None:
        self._file.close(is_whole=is_whole)


class _Array:
    """All predictions are one array."""

    def __init__(self, path: Path) -> None:
        # Without a single row the dtype is unknown: nothing is written.
        self.path: Path | None = None
        self._path = path
        self._file: NpyRows | None = None
        self._kind: Any = None

    def take(self, rows: list[Row], predictions: Any) -> None:
        kind = (
            (predictions.dtype, predictions.shape[1:])
            if isinstance(predictions, Tensor)
            else type(predictions)
        )
        self._kind = self._kind or kind
        if (
            not isinstance(predictions, Tensor)
            or predictions.dtype not in _NPY_TYPES
            or kind != self._kind
        ):
            raise UsageError(
                "output-cannot-hold-it",
                "these predictions do not form a single array of numbers.",
                because=f"some are {self._kind}, others {kind}"
                if kind != self._kind
                else f"they are {kind}",
                fix="write them as .jsonl or .csv",
            )
        if self._file is None:
            self._file = NpyRows(
                self._path, _NPY_TYPES[predictions.dtype], tuple(predictions.shape[1:])
            )
            self.path = self._path
        content = bytes(predictions.contiguous().flatten().view(torch.uint8).numpy())
        self._file.append_bytes(content, len(predictions))

    def close(self, *, is_whole: bool) -> None:
        if self._file is not None:
            self._file.close(is_whole=is_whole)


class _Folder:
    """A folder with `predictions.jsonl`, and a PNG file for each prediction that is a picture."""

    def __init__(self, path: Path, row_format: RowFormat, input_paths: set[Path]) -> None:
        self.path: Path | None = path
        self._folder = path
        self._row_format = row_format
        self._input_paths = input_paths
        self._used: set[str] = set()
        with atomic_files.mapped_os_errors(path):
            path.mkdir(parents=True, exist_ok=True)
        self._file = JsonRows(path / ROWS_IN_FOLDER)

    def take(self, rows: list[Row], predictions: Any) -> None:
        for line in self._row_format.rows(rows, predictions):
            values = {
                name: self._write(value, line) if is_picture(value) else value
                for name, value in line.values.items()
            }
            self._file.append({"input": line.input, "row": line.row, **values})

    def close(self, *, is_whole: bool) -> None:
        self._file.close(is_whole=is_whole)

    def _write(self, picture: Any, line: Predicted) -> str:
        """Writes a picture under the name of its input, and gives the file's name."""
        stem = re.sub(r"[^\w.-]+", "-", Path(line.input).stem)[:80] or "input"
        stem += f"-{line.row}" if line.row is not None else ""
        name, number = f"{stem}.png", 2
        while name in self._used:
            name, number = f"{stem}-{number}.png", number + 1
        self._used.add(name)
        _refuse_input(self._folder / name, self._input_paths)
        content = io.BytesIO()
        picture.save(content, format="PNG")
        atomic_files.write_atomically(self._folder / name, content.getvalue())
        return name


def _refuse_pictures(line: Predicted) -> None:
    if any(is_picture(value) for value in line.values.values()):
        raise UsageError(
            "pictures-need-a-folder",
            "these predictions are images, which can only be saved as files.",
            fix="choose a folder: --output FOLDER",
        )
