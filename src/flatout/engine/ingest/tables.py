"""CSV and Parquet files as records: finds the columns and their types, and reads matching rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from flatout.engine.ingest.records import Records, RejectedRecords, row_keys
from flatout.errors import UsageError, nearest
from flatout.schema.ingest_protocol import IngestJob, ShardColumn, SourcePiece
from flatout.system.csv_quotes import StrayQuote, blocks_of, check_quotes
from flatout.system.source_path import columns_text, library
from flatout.system.store.source_files import path_of

# Bytes of each CSV file used to infer the types of its columns.
_LOOK_BYTES = 4 * 2**20
_BLOCK_BYTES = 4 * 2**20
_BATCH_ROWS = 65_536

# The type of a column whose type differs between files or blocks.
_NUMBERS = {"int64", "double"}


def csv_columns(paths: Sequence[Path]) -> tuple[ShardColumn, ...]:
    """The columns of all these files, with types that fit the beginning of each.

    Raises:
        UsageError: table-not-readable, data-package-not-installed.
    """
    columns: list[tuple[str, str]] = []
    for path in paths:
        schema = _csv_schema(path)
        names = [name for name, _ in schema]
        if len(set(names)) < len(names):
            raise _not_readable(path, "two of its columns have the same name")
        if not columns:
            columns = schema
            continue
        if names != [name for name, _ in columns]:
            before = ", ".join(name for name, _ in columns)
            raise _not_readable(path, f"its columns are {', '.join(names)}; before: {before}")
        columns = [
            (name, _joined(first, second))
            for (name, first), (_, second) in zip(columns, schema, strict=True)
        ]
    return tuple(
        ShardColumn(name=name, type="string" if kind == "null" else kind) for name, kind in columns
    )


def _csv_schema(path: Path) -> list[tuple[str, str]]:
    arrow = library("pyarrow", package="pyarrow")
    csv = library("pyarrow.csv", package="pyarrow")
    try:
        reader = csv.open_csv(
            path,
            read_options=csv.ReadOptions(block_size=_LOOK_BYTES, use_threads=False),
            parse_options=_parse_options(path, lambda row: "skip"),
            convert_options=csv.ConvertOptions(strings_can_be_null=True, check_utf8=False),
        )
        return [(field.name, _plain(str(field.type))) for field in reader.schema]
    except (arrow.ArrowInvalid, OSError) as error:
        raise _not_readable(path, str(error)) from error


def _plain(kind: str) -> str:
    """A type that its name fully describes: dictionaries and binaries become strings."""
    return "string" if kind.startswith(("dictionary", "binary")) else kind


def _joined(first: str, second: str) -> str:
    if first == second or second == "null":
        return first
    if first == "null":
        return second
    return "double" if {first, second} <= _NUMBERS else "string"


def read_csv(job: IngestJob, piece: SourcePiece, bad: RejectedRecords) -> Iterator[Records]:
    """The rows of a CSV file, leaving out those with values of the wrong type."""
    arrow = library("pyarrow", package="pyarrow")
    csv = library("pyarrow.csv", package="pyarrow")
    name = piece.files[0]
    path = path_of(job.source, name)
    names = [column.name for column in job.settings.columns]
    try:
        check_quotes(blocks_of(path), _delimiter(path))
    except (StrayQuote, arrow.ArrowInvalid, OSError) as error:
        raise _not_readable(path, str(error)) from error
    broken: list[int] = []

    def leave_out(row: Any) -> str:
        broken.append(row.number or 0)
        reason = f"it has {row.actual_columns} values, not {row.expected_columns}"
        bad.add(f"{name}: line {row.number}" if row.number else name, reason, row.text)
        return "skip"

    reader = csv.open_csv(
        path,
        read_options=csv.ReadOptions(block_size=_BLOCK_BYTES, use_threads=False),
        parse_options=_parse_options(path, leave_out),
        convert_options=csv.ConvertOptions(
            column_types=dict.fromkeys(names, arrow.binary()),
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    num_before = 0
    try:
        for batch in reader:
            rows = _Rows(job, name, bad, num_before, broken)
            num_before += batch.num_rows
            yield from rows.records(batch.columns, batch.num_rows)
    except (arrow.ArrowInvalid, OSError) as error:
        # A file that cannot be parsed has no distinguishable rows.
        raise _not_readable(path, str(error)) from error


class _Rows:
    """Converts rows of strings to rows of values."""

    def __init__(
        self, job: IngestJob, name: str, bad: RejectedRecords, num_before: int, broken: list[int]
    ) -> None:
        self._arrow = library("pyarrow", package="pyarrow")
        self._job = job
        self._name = name
        self._bad = bad
        self._num_before = num_before
        self._broken = broken

    def records(self, texts: Sequence[Any], num_rows: int) -> Iterator[Records]:
        """The rows with valid values."""
        whys: dict[int, str] = {}
        columns = [
            self._cast(column, text, whys)
            for column, text in zip(self._job.settings.columns, texts, strict=True)
        ]
        for row, why in sorted(whys.items()):
            content = ",".join(
                (text[row].as_py() or b"").decode(errors="replace") for text in texts
            )
            self._bad.add(f"{self._name}: line {self._line(row)}", why, content)
        if whys:
            is_valid = self._arrow.array([row not in whys for row in range(num_rows)])
            columns = [column.filter(is_valid) for column in columns]
        yield from whole_rows(self._job, columns, self._name, self._bad)

    def _cast(self, column: ShardColumn, texts: Any, whys: dict[int, str]) -> Any:
        kind = self._arrow.type_for_alias(column.type)
        try:
            return self._typed(texts, kind)
        except self._arrow.ArrowInvalid:
            pass
        values = []
        for row in range(len(texts)):
            cell = texts.slice(row, 1)
            try:
                values.append(self._typed(cell, kind))
            except self._arrow.ArrowInvalid:
                text = cell[0].as_py().decode(errors="replace")[:60]
                whys.setdefault(row, f"{column.name}: {text!r} is not {column.type}")
                values.append(self._arrow.nulls(1, kind))
        return self._arrow.concat_arrays(values)

    def _typed(self, texts: Any, kind: Any) -> Any:
        return texts.cast(self._arrow.string()).cast(kind)

    def _line(self, row: int) -> int:
        """The line of a row if no value spans several lines; the first line is the header."""
        line = self._num_before + row + 2
        for broken in sorted(self._broken):
            if 0 < broken <= line:
                line += 1
        return line


def whole_rows(
    job: IngestJob, columns: Sequence[Any], location: str, bad: RejectedRecords
) -> Iterator[Records]:
    """Rows with their keys, without empty rows and rows without a value in the key column."""
    arrow = library("pyarrow", package="pyarrow")
    names = [column.name for column in job.settings.columns]
    values = [column.to_pylist() for column in columns]
    own = values if job.settings.key is None else [values[names.index(job.settings.key)]]
    empty = [
        row for row, row_values in enumerate(zip(*own, strict=True)) if not any_value(row_values)
    ]
    if empty:
        why = "it has no values" if job.settings.key is None else f"{job.settings.key} is missing"
        for _ in empty:
            bad.add(location, why)
        left_out = set(empty)
        remaining = [row for row in range(len(values[0])) if row not in left_out]
        columns = [column.take(arrow.array(remaining, arrow.int64())) for column in columns]
        own = [[column[row] for row in remaining] for column in own]
    yield Records(columns, list(row_keys(own)), sum(column.nbytes for column in columns))


def any_value(row: Sequence[Any]) -> bool:
    """Whether any value of a row is present."""
    return any(value is not None for value in row)


def parquet_columns(paths: Sequence[Path]) -> tuple[ShardColumn, ...]:
    """The columns of all these files, which must be the same.

    Raises:
        UsageError: table-not-readable, data-package-not-installed.
    """
    arrow = library("pyarrow", package="pyarrow")
    parquet = library("pyarrow.parquet", package="pyarrow")
    known: tuple[ShardColumn, ...] = ()
    for path in paths:
        try:
            schema = parquet.read_schema(path)
        except (arrow.ArrowInvalid, OSError) as error:
            raise _not_readable(path, str(error)) from error
        columns = tuple(ShardColumn(name=field.name, type=str(field.type)) for field in schema)
        if known and columns != known:
            raise _not_readable(
                path, f"its columns are {columns_text(columns)}; before: {columns_text(known)}"
            )
        known = columns
    return known


def row_group_ranges(path: Path, piece_bytes: int) -> Iterator[tuple[int, int, int]]:
    """Consecutive row groups as pieces: first, last + 1, and size in bytes."""
    parquet = library("pyarrow.parquet", package="pyarrow")
    with parquet.ParquetFile(path) as file:
        sizes = [
            file.metadata.row_group(number).total_byte_size
            for number in range(file.metadata.num_row_groups)
        ]
    begin, size_bytes = 0, 0
    for number, size in enumerate(sizes):
        size_bytes += size
        if size_bytes >= piece_bytes or number == len(sizes) - 1:
            yield begin, number + 1, size_bytes
            begin, size_bytes = number + 1, 0


def read_parquet(job: IngestJob, piece: SourcePiece, bad: RejectedRecords) -> Iterator[Records]:
    """The rows of some row groups; an unreadable group is left out entirely."""
    arrow = library("pyarrow", package="pyarrow")
    parquet = library("pyarrow.parquet", package="pyarrow")
    name = piece.files[0]
    with parquet.ParquetFile(path_of(job.source, name)) as file:
        for group in range(piece.begin, piece.end):
            try:
                table = file.read_row_group(group)
            except (arrow.ArrowException, OSError) as error:
                count = file.metadata.row_group(group).num_rows
                bad.add(f"{name}: row group {group}", str(error).splitlines()[0], count=count)
                continue
            for batch in table.to_batches(max_chunksize=_BATCH_ROWS):
                yield from whole_rows(job, batch.columns, name, bad)


def schema_of(job: IngestJob, piece: SourcePiece) -> Any:
    """The columns of a table's shards, as an Arrow schema."""
    arrow = library("pyarrow", package="pyarrow")
    if job.settings.kind == "parquet":
        parquet = library("pyarrow.parquet", package="pyarrow")
        return parquet.read_schema(path_of(job.source, piece.files[0])).remove_metadata()
    return arrow.schema(
        [(column.name, arrow.type_for_alias(column.type)) for column in job.settings.columns]
    )


def check_key(key: str | None, columns: Sequence[ShardColumn]) -> None:
    """Refuses a key that is not a column.

    Raises:
        UsageError: column-not-found.
    """
    names = [column.name for column in columns]
    if key is not None and key not in names:
        raise UsageError(
            "column-not-found", f"there is no column `{key}`.", fix=nearest(key, names)
        )


def _parse_options(path: Path, handler: Any) -> Any:
    csv = library("pyarrow.csv", package="pyarrow")
    return csv.ParseOptions(
        delimiter=_delimiter(path), newlines_in_values=True, invalid_row_handler=handler
    )


def _delimiter(path: Path) -> str:
    return "\t" if ".tsv" in path.name.lower() else ","


def _not_readable(path: Path, because: str) -> UsageError:
    return UsageError(
        "table-not-readable",
        f"{path} cannot be read as a table.",
        because=because,
        fix="give all files of a table the same columns, close each quote, and separate values "
        "with commas, in .tsv with tabs",
    )
