"""Readers for `predict_data`: one input of `flatout predict` as samples like the training data.

They get what they need to know about the training data as `like` and infer nothing from the new
data, so the same file always becomes the same samples.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from flatout.engine.data.columns import Columns, readable
from flatout.engine.data.pictures import Cut
from flatout.engine.data.plain_csv import PlainTable, RawTable, as_fractions, convert, read_raw
from flatout.engine.data.row_groups import ParquetRows, open_row_groups
from flatout.engine.data.tables import Table
from flatout.engine.data.tensor_files import read_tensors
from flatout.engine.data.values import Field, fields_of
from flatout.errors import UsageError
from flatout.schema.units import noun_text
from flatout.system.source_path import library

_PARQUET = ".parquet"
# Weights of red, green and blue in grey. Source: ITU-R BT.601, as in Pillow's mode L.
_GREY = (0.299, 0.587, 0.114)


def image(path: str | Path, *, size: int | tuple[int, int], grey: bool = False) -> Tensor:
    """An image file as a batch of one, as `image_folder` reads it for validation.

    It may have any size and mode: its center is cropped and resized.

    Args:
        path: of the file, of any format that Pillow reads.
        size: height and width in pixels; a pair (height, width) where they differ.
        grey: one channel instead of three.

    Returns:
        Bytes (1, 3, height, width), or (1, 1, height, width) if grey.

    Raises:
        FileNotFoundError: the file does not exist.
        UsageError: image-not-readable, data-package-not-installed.
    """
    file = _existing(path)
    library("PIL.Image", package="Pillow")
    try:
        pixels = Cut(size, None, False).read(str(file)) if isinstance(size, int) else _fit(
            file, size
        )  # fmt: skip
    except Exception as error:
        # Pillow can raise nearly anything for a damaged file.
        raise UsageError(
            "image-not-readable",
            f"{path} is not an intact image.",
            because=str(error) or type(error).__name__,
            fix="give an image file, such as JPEG or PNG; the experiment's `predict_data` reads "
            "nothing else",
        ) from error
    if grey:
        shares = torch.tensor(_GREY).view(3, 1, 1)
        pixels = (pixels * shares).sum(0, keepdim=True).round().to(torch.uint8)
    return pixels.unsqueeze(0)


def _fit(file: Path, size: tuple[int, int]) -> Tensor:
    from PIL import Image, ImageOps

    height, width = size
    with Image.open(file) as opened:
        upright = ImageOps.exif_transpose(opened).convert("RGB")
    fitted = ImageOps.fit(upright, (width, height), Image.Resampling.BILINEAR)
    pixels = torch.frombuffer(bytearray(fitted.tobytes()), dtype=torch.uint8)
    return pixels.view(height, width, 3).permute(2, 0, 1).contiguous()


def rows(path: str | Path, *, like: Columns | Table | ParquetRows) -> tuple[Tensor, ...]:
    """The inputs from the rows of a CSV or Parquet file, in the form of the training table.

    Columns are matched by name, in any order; the target may be missing, and other columns are
    not read. Categories, replacements and the kind of each column come from `like`.

    Args:
        path: of the file; `.parquet` is read as Parquet, anything else as CSV.
        like: the training table, or its `columns`.

    Returns:
        (numbers, codes); a part that the table does not have is left out.

    Raises:
        FileNotFoundError: the file does not exist.
        UsageError: column-not-found, column-of-unknown-kind, missing-values, unknown-category,
            table-not-readable, no-data, data-package-not-installed.
    """
    file = _existing(path)
    trained = like if isinstance(like, Columns) else like.columns
    columns = replace(trained, name=str(path), target=None, is_new=True)
    columns_read = (
        _parquet_rows(file, columns) if file.suffix == _PARQUET else _csv_rows(file, columns)
    )
    if not len(columns_read[0]):
        raise UsageError("no-data", f"{path} has no rows.", fix="give a file that has rows")
    return columns_read


def _csv_rows(file: Path, columns: Columns) -> tuple[Tensor, ...]:
    with readable(columns.name):
        raw = read_raw(file, columns.delimiter)
    _check_columns(columns, raw.names)
    fields, values = [], []
    for name in columns.names:
        cells = raw.columns[raw.names.index(name)]
        kind = columns.kinds[name]
        fields.append(Field(name, kind))
        values.append(convert(name, cells, kind, is_number=name in columns.numbers))
    return columns.tensors(PlainTable(tuple(fields), tuple(values), raw.num_rows))


def _parquet_rows(file: Path, columns: Columns) -> tuple[Tensor, ...]:
    groups = open_row_groups(columns.name, [file])
    _check_columns(columns, groups.schema.names)
    kinds = {field.name: field.kind for field in fields_of(groups.schema)}
    for name in columns.numbers:
        if kinds[name] in ("text", "other"):
            raise UsageError(
                "column-of-unknown-kind",
                f"column `{name}` of {columns.name} does not hold numbers.",
                because="it held numbers in the training data",
                fix="write numbers into it",
            )
    parts = [columns.tensors(groups.read(group, columns.names)) for group in range(len(groups))]
    return tuple(torch.cat(column) for column in zip(*parts, strict=True)) or (torch.empty(0),)


def _check_columns(columns: Columns, names: Sequence[str]) -> None:
    missing = [name for name in columns.names if name not in names]
    if missing:
        listed = ", ".join(f"`{name}`" for name in missing)
        raise UsageError(
            "column-not-found",
            f"{columns.name} has no {noun_text(len(missing), 'column')} {listed}.",
            because=f"`predict_data` needs the columns that the model was trained on; the file has "
            f"{', '.join(f'`{name}`' for name in names)}",
            fix="use the column names of the training data in the first line, in any order",
        )


def tensors(path: str | Path, *, like: Tensor, name: str = "inputs") -> Tensor:
    """Samples of numbers from a file, in the shape and type of the training samples.

    Args:
        path: of a .npy file; of a .safetensors file, whose tensor `name` is taken, or its only one;
            or, for samples in a row of numbers, of a CSV or Parquet file.
        like: training samples (samples, ...).
        name: of the tensor in a .safetensors file.

    Returns:
        (samples, ...); a file with a single sample may leave the first dimension out.

    Raises:
        FileNotFoundError: the file does not exist.
        UsageError: input-does-not-fit, input-not-readable, column-of-unknown-kind,
            table-not-readable, data-package-not-installed.
    """
    file = _existing(path)
    shape = like.shape[1:]
    is_table = len(shape) == 1 and file.suffix in (".csv", _PARQUET)
    values = _numbers(file) if is_table else read_tensors(str(file))
    if isinstance(values, dict):
        if name not in values:
            raise UsageError(
                "input-does-not-fit",
                f"{path} has no tensor `{name}`.",
                because=f"it has {', '.join(sorted(values))}",
                fix=f"save it with the samples as `{name}`",
            )
        values = values[name]
    if values.shape == shape:
        values = values.unsqueeze(0)
    if values.shape[1:] != shape:
        raise UsageError(
            "input-does-not-fit",
            f"{path} holds samples of shape {tuple(values.shape[1:])}.",
            because=f"the model was trained on samples of shape {tuple(shape)}",
            fix="give samples of that shape, stacked along the first dimension",
        )
    samples: Tensor = values.to(like.dtype)
    return samples


def _numbers(file: Path) -> Tensor:
    """The rows of a table of numbers only, with or without column names."""
    if file.suffix == _PARQUET:
        table = library("pyarrow.parquet", package="pyarrow").read_table(file)
        raw = RawTable(
            tuple(table.column_names),
            tuple([None if cell is None else str(cell) for cell in column.to_pylist()]
                  for column in table.columns),
        )  # fmt: skip
    else:
        with readable(str(file)):
            raw = read_raw(file, ",")
    columns = list(raw.columns)
    if as_fractions(raw.names) is not None:
        columns = [[name, *cells] for name, cells in zip(raw.names, columns, strict=True)]
    parsed = [
        convert(name, cells, "fraction", is_number=True)
        for name, cells in zip(raw.names, columns, strict=True)
    ]
    for name, values in zip(raw.names, parsed, strict=True):
        if rows_missing := values.is_missing():
            raise UsageError(
                "missing-values",
                f"column `{name}` of {file} is empty in row {rows_missing[0] + 1:,}.",
                fix="fill it in, or remove the row",
            )
    return torch.stack([values.numbers(None) for values in parsed], 1)


def text_bytes(text: str, *, longest: int | None = None) -> Tensor:
    """A text, or the content of a file if one has that name, as a batch of one.

    Args:
        text: the text or the file's path.
        longest: how many bytes to take from its beginning; None takes all.

    Returns:
        Bytes in UTF-8 (1, length).

    Raises:
        ValueError: it is empty.
    """
    is_file = os.path.isfile(text)
    num_bytes = os.path.getsize(text) if is_file else len(text.encode())
    if not num_bytes:
        raise ValueError("it is empty")
    if is_file:
        content = torch.from_file(text, size=num_bytes, dtype=torch.uint8)
    else:
        content = torch.tensor(list(text.encode()), dtype=torch.uint8)
    # A copy, since the file may be gone before the model runs.
    return content[:longest].clone().unsqueeze(0)


def _existing(path: str | Path) -> Path:
    file = Path(path)
    if not file.is_file():
        raise FileNotFoundError(str(path))
    return file
