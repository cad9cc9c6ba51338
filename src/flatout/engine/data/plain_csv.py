"""CSV files read in pure Python, with the same types and values as pyarrow.

It is slower, so it is used only where pyarrow is not installed, and for prediction input, where
the type of each column is already known.
"""

from __future__ import annotations

import bz2
import datetime
import gzip
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flatout.engine.data.values import EMPTY_COLUMN, Field, PlainValues, ValueKind
from flatout.errors import UsageError
from flatout.schema.units import counted_text
from flatout.system.csv_quotes import StrayQuote, check_quotes

# Unquoted cells that mean a missing value.
# Source: pyarrow.csv.ConvertOptions, `null_values`.
_MISSING = frozenset((
    "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN",
    "N/A", "NA", "NULL", "NaN", "n/a", "nan", "null",
))  # fmt: skip
# Source: pyarrow.csv.ConvertOptions, `true_values` and `false_values`.
_TRUTHS = {"1": True, "True": True, "TRUE": True, "true": True,
           "0": False, "False": False, "FALSE": False, "false": False}  # fmt: skip
_WHOLE = re.compile(r"-?[0-9]+|0[xX][0-9a-fA-F]{1,16}")
_FRACTION = re.compile(
    r"[+-]?(([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[iI][nN][fF]([iI][nN][iI][tT][yY])?"
    r"|[nN][aA][nN])"
)
_DATE = r"(\d{4}-\d\d-\d\d)"
_TIME = r"((?:[01]\d|2[0-3]):[0-5]\d(?::[0-5]\d)?)"
_DAY = re.compile(_DATE, re.ASCII)
_CLOCK = re.compile(_TIME, re.ASCII)
_MOMENT = re.compile(
    _DATE + r"(?:[ T](?:(?:[01]\d|2[0-3])|" + _TIME + r"(\.\d{1,9})?)(Z|[+-]\d\d(?::?\d\d)?)?)?",
    re.ASCII,
)
_LARGEST = 2**63
# Years that 64-bit nanoseconds since 1970 can represent.
_NANOSECOND_YEARS = range(1678, 2262)
_OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open}
_COMPRESSED_OTHERWISE = (".zst", ".lz4", ".br", ".sz", ".snappy")
_SHOWN = 40


class NotATable(ValueError):
    """A file that is not CSV, or files that do not fit together."""


@dataclass(frozen=True)
class RawTable:
    """A CSV file as written. columns: the cells of each, None where one is missing."""

    names: tuple[str, ...]
    columns: tuple[list[str | None], ...]

    @property
    def num_rows(self) -> int:
        """Number of rows, without the header."""
        return len(self.columns[0]) if self.columns else 0


@dataclass(frozen=True)
class PlainTable:
    """Columns of values with inferred types."""

    fields: tuple[Field, ...]
    columns: tuple[PlainValues, ...]
    num_rows: int

    def __getitem__(self, name: str) -> PlainValues:
        names = [field.name for field in self.fields]
        return self.columns[names.index(name)]


def read_plain(files: Sequence[Path], delimiter: str) -> PlainTable:
    """CSV files with the same columns, as one table; column types are inferred.

    Raises:
        NotATable: they cannot be read, or their columns hold different things.
        OSError: one does not exist.
        UsageError: table-not-readable.
    """
    tables = [read_raw(file, delimiter) for file in files]
    for table, file in zip(tables, files, strict=True):
        check_names(table.names, tables[0].names, file)
    fields, columns = [], []
    for index, name in enumerate(tables[0].names):
        typed = [_typed(table.columns[index]) for table in tables]
        kind, because = _merged(name, [part[:2] for part in typed])
        fields.append(Field(name, kind, because))
        cells = [cell for _, _, part in typed for cell in part]
        columns.append(PlainValues(kind, cells))
    if len({field.name for field in fields}) < len(fields):
        raise NotATable("duplicate field: two columns have the same name")
    return PlainTable(tuple(fields), tuple(columns), sum(table.num_rows for table in tables))


def read_raw(file: Path, delimiter: str) -> RawTable:
    """The cells of a CSV file.

    Raises:
        NotATable: it is not a CSV file.
        OSError: it does not exist.
    """
    suffix = file.suffix.lower()
    if suffix in _COMPRESSED_OTHERWISE:
        raise UsageError(
            "table-not-readable",
            f"{file} has a compression that only pyarrow reads.",
            fix="decompress it, or compress it with gzip",
        )
    with _OPENERS.get(suffix, open)(file, "rb") as stream:
        content = stream.read()
    try:
        check_quotes([content], delimiter)
    except StrayQuote as error:
        raise NotATable(str(error)) from error
    # Text that is not UTF-8 is kept, and its column gets the kind `other`.
    text = content.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape")
    rows = _rows(text, delimiter)
    head = next(rows, None)
    if head is None:
        raise NotATable("Empty CSV file")
    names = tuple(head)
    columns: tuple[list[str], ...] = tuple([] for _ in names)
    for number, row in enumerate(rows, start=2):
        if len(row) != len(names):
            shown = delimiter.join(row)
            raise NotATable(
                f"Row #{number}: Expected {counted_text(len(names), 'column')}, "
                f"got {len(row)}: {shown:.100}"
            )
        for column, cell in zip(columns, row, strict=True):
            column.append(cell)
    if any(_is_broken(name) for name in names):
        raise NotATable("its column names are not UTF-8")
    return RawTable(names, tuple([_present(cell) for cell in column] for column in columns))


def check_names(names: Sequence[str], first: Sequence[str], file: Path) -> None:
    """Refuses a file whose columns differ from the first file's.

    Raises:
        UsageError: table-not-readable.
    """
    if names != first:
        raise UsageError(
            "table-not-readable",
            f"{file} has different columns from the files before it.",
            because=f"{', '.join(names)}; before: {', '.join(first)}",
            fix="give all files in the folder the same columns in the same order",
        )


class _Quoted(str):
    """A quoted cell, which is never missing."""

    __slots__ = ()


def _present(cell: str) -> str | None:
    return None if cell in _MISSING and not isinstance(cell, _Quoted) else cell


def _rows(text: str, delimiter: str) -> Iterator[list[str]]:
    if '"' in text:
        yield from _quoted_rows(text, delimiter)
        return
    for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        if line:
            yield line.split(delimiter)


def _quoted_rows(text: str, delimiter: str) -> Iterator[list[str]]:
    plain = rf"[^{re.escape(delimiter)}\r\n]*"
    cell = re.compile(rf'"((?:[^"]|"")*)(?:"({plain})|\Z)|({plain})')
    end = re.compile(rf"{re.escape(delimiter)}|\r\n|\r|\n|\Z")
    row: list[str] = []
    position = 0
    while position < len(text) or row:
        opened = cell.match(text, position)
        closed = end.match(text, opened.end()) if opened else None
        if not opened or not closed:
            raise NotATable("a quoted cell is not closed")
        if opened[3] is None:
            row.append(_Quoted(opened[1].replace('""', '"') + (opened[2] or "")))
        else:
            row.append(opened[3])
        position = closed.end()
        if closed[0] != delimiter:
            if row != [""] or isinstance(row[0], _Quoted):
                yield row
            row = []


def _typed(cells: Sequence[str | None]) -> tuple[ValueKind, str | None, Sequence[Any]]:
    """A column's kind, why it cannot be used if so, and its values."""
    present = [cell for cell in cells if cell is not None]
    if not present:
        return "other", EMPTY_COLUMN, cells
    numbers = as_numbers(cells)
    if numbers is not None:
        return numbers.kind, None, numbers.cells
    if all(cell in _TRUTHS for cell in present):
        return "truth", None, [None if cell is None else _TRUTHS[cell] for cell in cells]
    # As pyarrow infers them: dates are dates, not text.
    special = _moment_kind(present)
    if special is not None:
        return "other", f"it holds {special} values", cells
    fractions = as_fractions(cells)
    if fractions is not None:
        return "fraction", None, fractions
    if any(_is_broken(cell) for cell in present):
        return "other", "its text is not UTF-8", cells
    return "text", None, cells


@dataclass(frozen=True)
class Numbers:
    """Cells as numbers."""

    kind: ValueKind
    cells: list[Any]


def as_numbers(cells: Sequence[str | None]) -> Numbers | None:
    """64-bit integers; None if any cell is something else."""
    parsed: list[int | None] = []
    for cell in cells:
        if cell is None:
            parsed.append(None)
            continue
        number = _whole(cell)
        if number is None:
            return None
        parsed.append(number)
    return Numbers("whole", parsed)


def _whole(cell: str) -> int | None:
    bare = cell.strip(" \t")
    if not _WHOLE.fullmatch(bare):
        return None
    if bare[:2] in ("0x", "0X"):
        number = int(bare, 16)
        return number - 2 * _LARGEST if number >= _LARGEST else number
    number = int(bare)
    return number if -_LARGEST <= number < _LARGEST else None


def as_fractions(cells: Sequence[str | None]) -> list[float | None] | None:
    """fp64 numbers; None if any cell is something else."""
    parsed: list[float | None] = []
    for cell in cells:
        if cell is None:
            parsed.append(None)
            continue
        bare = cell.strip(" \t")
        if not _FRACTION.fullmatch(bare):
            return None
        parsed.append(float(bare))
    return parsed


def _is_broken(cell: str) -> bool:
    return any("\udc80" <= letter <= "\udcff" for letter in cell)


def _moment_kind(cells: Sequence[str]) -> str | None:
    """The type of dates and times, in the order in which pyarrow tries them."""
    kinds: set[str] | None = None
    for cell in cells:
        own = _moment_kinds(cell.strip(" \t"))
        kinds = own if kinds is None else kinds & own
        if not kinds:
            return None
    order = ("date32[day]", "time32[s]", "timestamp[s]", "timestamp[s, tz=UTC]", "timestamp[ns]",
             "timestamp[ns, tz=UTC]")  # fmt: skip
    return next((kind for kind in order if kind in (kinds or ())), None)


def _moment_kinds(cell: str) -> set[str]:
    if _CLOCK.fullmatch(cell):
        return {"time32[s]"}
    match = _MOMENT.fullmatch(cell)
    if not match or not _is_date(match[1]):
        return set()
    zone = ", tz=UTC" if match[4] else ""
    kinds = {f"timestamp[ns{zone}]"} if int(match[1][:4]) in _NANOSECOND_YEARS else set()
    if not match[3]:
        kinds.add(f"timestamp[s{zone}]")
    if _DAY.fullmatch(cell):
        kinds.add("date32[day]")
    return kinds


def _is_date(text: str) -> bool:
    try:
        datetime.date.fromisoformat(text)
    except ValueError:
        return False
    return True


def _merged(
    name: str, kinds_of_files: Sequence[tuple[ValueKind, str | None]]
) -> tuple[ValueKind, str | None]:
    """The kind of a column across several files, where some files may have no values in it."""
    kinds = dict.fromkeys(kind for kind in kinds_of_files if kind[1] != EMPTY_COLUMN)
    if len(kinds) <= 1:
        return next(iter(kinds), kinds_of_files[0])
    if {kind for kind, _ in kinds} == {"whole", "fraction"}:
        return "fraction", None
    listed = " and ".join(because or kind for kind, because in kinds)
    raise NotATable(f"Unable to merge: column `{name}` holds {listed} in different files")


def convert(
    name: str, cells: Sequence[str | None], kind: ValueKind, *, is_number: bool
) -> PlainValues:
    """Converts cells to the kind that the column had in the training data.

    Raises:
        UsageError: column-of-unknown-kind.
    """
    values: Sequence[Any] | None = cells
    if kind == "truth":
        values = [_TRUTHS.get(cell or "") for cell in cells]
        if is_number and any(
            value is None and cell is not None for value, cell in zip(values, cells, strict=True)
        ):
            values = None
    elif kind == "whole":
        numbers = as_numbers(cells)
        values = numbers.cells if numbers else as_fractions(cells)
        kind = kind if numbers else "fraction"
    elif kind == "fraction":
        values = as_fractions(cells)
    if values is not None:
        return PlainValues(kind, values)
    if not is_number:
        return PlainValues("text", cells)
    wrong = next(cell for cell in cells if cell is not None and as_fractions([cell]) is None)
    row = list(cells).index(wrong) + 1
    raise UsageError(
        "column-of-unknown-kind",
        f"column `{name}` has {wrong[:_SHOWN]!r} in row {row}, which is not a number.",
        because="it held numbers in the training data",
        fix="correct that row, or leave the cell empty if the training data had empty ones",
    )
