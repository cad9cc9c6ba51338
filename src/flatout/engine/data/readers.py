"""Readers for `predict_data`: one input of `flatout predict` as samples like those trained on.

What they need to know of the training data they are given as `like`; nothing is found out from the
new data, so the same file always becomes the same samples.
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
from flatout.engine.data.values import Field, fields_of
from flatout.engine.data_files import library
from flatout.engine.inputs import read_tensors
from flatout.errors import UsageError
from flatout.nouns.units import noun_text

_PARQUET = ".parquet"
# Of grey in red, green and blue. Source: ITU-R BT.601, as Pillow's mode L has it.
_GREY = (0.299, 0.587, 0.114)


def image(path: str | Path, *, size: int | tuple[int, int], grey: bool = False) -> Tensor:
    """An image file as a batch of one, as `image_folder` reads it for validation.

    It may be of any size and mode: its middle is cut out and resized.

    Args:
        path: of the file, of any format that Pillow reads.
        size: height and width in pixels; a pair (height, width) where they differ.
        grey: one channel in place of three.

    Returns:
        Bytes (1, 3, height, width), or (1, 1, height, width) if grey.

    Raises:
        FileNotFoundError: there is no such file.
        UsageError: image-not-readable, data-package-not-installed.
    """
    file = _existing(path)
    library("PIL.Image", package="Pillow")
    try:
        pixels = Cut(size, None, False).read(str(file)) if isinstance(size, int) else _fit(
            file, size
        )  # fmt: skip
    except Exception as error:
        # A damaged file makes Pillow raise nearly anything.
        raise UsageError(
            "image-not-readable",
            f"{path} is not a whole image.",
            because=str(error) or type(error).__name__,
            fix="give an image file, such as JPEG or PNG; `predict_data` of the experiment reads "
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
    """The inputs of a CSV or Parquet file's rows, as those of the table that was trained on.

    Columns are found by their names, in any order; the target need not be there, and what else
    there is is not read. Categories, filled values and the kind of each column are those of `like`.

    Args:
        path: of the file; `.parquet` is read as Parquet, anything else as CSV.
        like: the table that was trained on, or its `columns`.

    Returns:
        (numbers, codes), without what the table has none of.

    Raises:
        FileNotFoundError: there is no such file.
        UsageError: column-not-found, column-of-unknown-kind, missing-values, unknown-category,
            table-not-readable, no-data, data-package-not-installed.
    """
    file = _existing(path)
    trained = like if isinstance(like, Columns) else like.columns
    columns = replace(trained, name=str(path), target=None, is_new=True)
    found = _parquet_rows(file, columns) if file.suffix == _PARQUET else _csv_rows(file, columns)
    if not len(found[0]):
        raise UsageError("no-data", f"{path} has no rows.", fix="give a file that has some")
    return found


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
                f"column `{name}` of {columns.name} holds no numbers.",
                because="it held numbers in the data that the model was trained on",
                fix="write it with numbers",
            )
    parts = [columns.tensors(groups.read(one, columns.names)) for one in range(len(groups))]
    return tuple(torch.cat(column) for column in zip(*parts, strict=True)) or (torch.empty(0),)


def _check_columns(columns: Columns, names: Sequence[str]) -> None:
    missing = [name for name in columns.names if name not in names]
    if missing:
        told = ", ".join(f"`{name}`" for name in missing)
        raise UsageError(
            "column-not-found",
            f"{columns.name} has no {noun_text(len(missing), 'column')} {told}.",
            because=f"`predict_data` reads the columns that the model was trained on; it has "
            f"{', '.join(f'`{name}`' for name in names)}",
            fix="name the columns in the first line as in the training data; their order does not "
            "matter",
        )


def tensors(path: str | Path, *, like: Tensor, name: str = "inputs") -> Tensor:
    """Samples of numbers out of a file, of the shape and type of those that were trained on.

    Args:
        path: of a .npy file; of a .safetensors file, whose tensor `name` is taken, or its only one;
            or, for samples in a row of numbers, of a CSV or Parquet file.
        like: training samples (samples, ...).
        name: of the tensor in a .safetensors file.

    Returns:
        (samples, ...); a file with a single sample may leave the first dimension out.

    Raises:
        FileNotFoundError: there is no such file.
        UsageError: input-does-not-fit, input-not-readable, column-of-unknown-kind,
            table-not-readable, data-package-not-installed.
    """
    file = _existing(path)
    shape = like.shape[1:]
    is_table = len(shape) == 1 and file.suffix in (".csv", _PARQUET)
    found = _numbers(file) if is_table else read_tensors(str(file))
    if isinstance(found, dict):
        if name not in found:
            raise UsageError(
                "input-does-not-fit",
                f"{path} holds no tensor `{name}`.",
                because=f"it holds {', '.join(sorted(found))}",
                fix=f"save it with the samples as `{name}`",
            )
        found = found[name]
    if found.shape == shape:
        found = found.unsqueeze(0)
    if found.shape[1:] != shape:
        raise UsageError(
            "input-does-not-fit",
            f"{path} holds samples of shape {tuple(found.shape[1:])}.",
            because=f"the model was trained on samples of shape {tuple(shape)}",
            fix="give samples of that shape, one behind the other",
        )
    samples: Tensor = found.to(like.dtype)
    return samples


def _numbers(file: Path) -> Tensor:
    """The rows of a table that holds nothing but numbers, with or without names of columns."""
    if file.suffix == _PARQUET:
        table = library("pyarrow.parquet", package="pyarrow").read_table(file)
        raw = RawTable(
            tuple(table.column_names),
            tuple([None if one is None else str(one) for one in column.to_pylist()]
                  for column in table.columns),
        )  # fmt: skip
    else:
        with readable(str(file)):
            raw = read_raw(file, ",")
    columns = list(raw.columns)
    if as_fractions(raw.names) is not None:
        columns = [[name, *cells] for name, cells in zip(raw.names, columns, strict=True)]
    found = [
        convert(name, cells, "fraction", is_number=True)
        for name, cells in zip(raw.names, columns, strict=True)
    ]
    for name, values in zip(raw.names, found, strict=True):
        if rows_missing := values.is_missing():
            raise UsageError(
                "missing-values",
                f"column `{name}` of {file} is empty in row {rows_missing[0] + 1:,}.",
                fix="fill it in, or leave the row out",
            )
    return torch.stack([values.numbers(None) for values in found], 1)


def text_bytes(text: str, *, longest: int | None = None) -> Tensor:
    """A text, or that in a file if there is one of that name, as a batch of one.

    Args:
        text: the text or the file's path.
        longest: how many bytes of its beginning are taken; None takes all.

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
    # A copy: the file may be gone before the model has seen it.
    return content[:longest].clone().unsqueeze(0)


def _existing(path: str | Path) -> Path:
    file = Path(path)
    if not file.is_file():
        raise FileNotFoundError(str(path))
    return file
