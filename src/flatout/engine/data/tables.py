"""Tables in memory: CSV and Parquet files as tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
from torch import Tensor

from flatout.engine.data.columns import Columns, TableOptions, Value, columns_of, readable
from flatout.engine.data.plain_csv import check_names, read_plain
from flatout.engine.data.row_groups import RowGroups, open_row_groups
from flatout.engine.data.values import Field, fields_of
from flatout.engine.feed.datasets import TensorData
from flatout.engine.tensors.nested import tensors_in
from flatout.errors import UsageError
from flatout.schema.units import bytes_text
from flatout.system.csv_quotes import blocks_of, check_quotes
from flatout.system.optional_packages import is_installed
from flatout.system.source_path import files_in, library

# Share of the free memory for a table; the training needs the rest.
_MEMORY_SHARE = 0.5
_FP32_BYTES = 4
# Bytes of memory that Python objects take for each byte of a CSV file.
_PLAIN_SHARE = 16
# The largest block that pyarrow reads from a CSV file in one go.
_LARGEST_BLOCK_BYTES = 2**31 - 1


def csv(
    path: str | Path,
    *,
    target: str | None = None,
    columns: Sequence[str] | None = None,
    vocabularies: Mapping[str, Sequence[str] | None] | None = None,
    fill: Mapping[str, Value] | None = None,
    delimiter: str = ",",
) -> Table:
    """A CSV file whose first line names the columns, or a folder of such files.

    Numbers become one fp32 tensor; columns of texts become codes, with a vocabulary for each.

    Args:
        path: of the file or folder; UTF-8, optionally compressed (`.csv.gz`).
        target: the column to predict; None if there is none.
        columns: input columns, in this order; by default all.
        vocabularies: for each category column all values, in the order of their codes, or None for
            those that occur, sorted. Text columns need not be named. For validation data in
            another file, pass the training data's vocabularies.
        fill: replacements for missing values, by column; in other columns these are refused.
        delimiter: the character between two values.

    Returns:
        A table of (numbers, codes, target); parts that it does not have are left out.

    Raises:
        UsageError: data-path-not-found, table-not-readable, column-not-found, missing-values,
            column-of-unknown-kind, unknown-category, table-too-large, data-package-not-installed.
    """
    files = files_in(path, ".csv")
    options = TableOptions(
        name=str(path), target=target, columns=columns, vocabularies=vocabularies, fill=fill,
        delimiter=delimiter,
    )  # fmt: skip
    num_bytes = sum(file.stat().st_size for file in files)
    if is_installed("pyarrow"):
        _check_memory(options.name, num_bytes)
        whole, fields = _read_by_arrow(options, files)
    else:
        _check_memory(options.name, num_bytes * _PLAIN_SHARE)
        with readable(options.name):
            whole = read_plain(files, delimiter)
        fields = whole.fields
    _check_rows(options.name, whole.num_rows)
    columns_read = columns_of(options, fields, lambda name: [whole[name]])
    return Table(columns_read, columns_read.tensors(whole))


def parquet(
    path: str | Path,
    *,
    target: str | None = None,
    columns: Sequence[str] | None = None,
    vocabularies: Mapping[str, Sequence[str] | None] | None = None,
    fill: Mapping[str, Value] | None = None,
) -> Table:
    """A Parquet file, or a folder of them, in memory; see `csv` for arguments and result.

    Raises:
        UsageError: as `csv`.
    """
    options = TableOptions(
        name=str(path), target=target, columns=columns, vocabularies=vocabularies, fill=fill
    )
    return table_of(options, open_row_groups(options.name, files_in(path, ".parquet")))


def table_of(options: TableOptions, groups: RowGroups) -> Table:
    """The rows of these groups in memory, read with these options.

    Raises:
        UsageError: as `csv`.
    """
    _check_rows(options.name, groups.num_rows)
    columns = options.columns
    num_columns = len(columns) + 1 if columns is not None else len(groups.schema.names)
    _check_memory(options.name, groups.num_rows * num_columns * _FP32_BYTES)
    columns_read = columns_of(options, fields_of(groups.schema), groups.column)
    tensors: list[Tensor] = []
    row = 0
    # Group by group into tensors of the full size, so that the table is never in memory twice.
    for number in range(len(groups)):
        parts = columns_read.tensors(groups.read(number, columns_read.names))
        if not tensors:
            tensors = [part.new_empty(groups.num_rows, *part.shape[1:]) for part in parts]
        for whole, part in zip(tensors, parts, strict=True):
            whole[row : row + len(part)] = part
        row += len(parts[0])
    return Table(columns_read, tuple(tensors))


class Table(TensorData):
    """Rows in memory, sliced like tensors.

    tensors: (numbers, codes, target), without parts that the table does not have.
    numbers: names of the columns of `numbers` (rows, columns), fp32.
    categories: names of the columns of `codes` (rows, columns), int64.
    vocabularies: for each category column, the value that each code stands for.
    columns: how the columns of a file become tensors.
    """

    def __init__(self, columns: Columns, tensors: tuple[Tensor, ...]) -> None:
        super().__init__(tensors)
        self.numbers = columns.numbers
        self.categories = columns.categories
        self.vocabularies = columns.vocabularies
        self.columns = columns

    def like(self, columns: Columns) -> Table:
        """This table, if it has the same columns and categories as one read earlier.

        Raises:
            UsageError: training-data-changed.
        """
        self.columns.check_same(columns)
        return self

    def rows(self, indices: Tensor) -> Table:
        """A table with only these rows."""
        return Table(self.columns, tuple(tensor[indices] for tensor in tensors_in(self.tensors)))


def _read_by_arrow(options: TableOptions, files: Sequence[Path]) -> tuple[Any, tuple[Field, ...]]:
    arrow = library("pyarrow", package="pyarrow")
    with readable(options.name):
        pieces = [_read_csv(file, options.delimiter) for file in files]
        for piece, file in zip(pieces, files, strict=True):
            check_names(piece.schema.names, pieces[0].schema.names, file)
        whole = arrow.concat_tables(pieces, promote_options="permissive")
    return whole, fields_of(whole.schema)


def _read_csv(file: Path, delimiter: str) -> Any:
    reader = library("pyarrow.csv", package="pyarrow")
    arrow = library("pyarrow", package="pyarrow")
    check_quotes(blocks_of(file), delimiter)
    parse = reader.ParseOptions(delimiter=delimiter)
    # An empty cell is a missing value in text columns, too; a quoted one is an empty string.
    convert = reader.ConvertOptions(strings_can_be_null=True, quoted_strings_can_be_null=False)
    with contextlib.suppress(arrow.ArrowInvalid):
        return reader.read_csv(file, parse_options=parse, convert_options=convert)
    # Column types are guessed from the first block. If that was wrong, the whole file is read in
    # one thread, which also knows the number of the row that cannot be read.
    block_bytes = min(max(file.stat().st_size * 2, 2**20), _LARGEST_BLOCK_BYTES)
    whole = reader.ReadOptions(block_size=block_bytes, use_threads=False)
    return reader.read_csv(file, read_options=whole, parse_options=parse, convert_options=convert)


def _check_rows(name: str, num_rows: int) -> None:
    if not num_rows:
        raise UsageError("no-data", f"{name} has no rows.", fix="check that it is the right file")


def _check_memory(name: str, num_bytes: int) -> None:
    free = psutil.virtual_memory().available
    if num_bytes > _MEMORY_SHARE * free:
        raise UsageError(
            "table-too-large",
            f"{name} would take {bytes_text(num_bytes)} of memory; {bytes_text(free)} is free.",
            because=f"a table may take {_MEMORY_SHARE:.0%} of the free memory",
            fix="read it in pieces with data.parquet_rows (convert CSV to Parquet first), or "
            "name fewer columns: columns=[...]",
        )
