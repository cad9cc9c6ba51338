"""The values of a table's column, read by pyarrow or by pure Python."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from flatout.system.source_path import library

# What a column holds; `other` cannot be used for training.
ValueKind = Literal["whole", "fraction", "truth", "text", "other"]

# Why a column without a value cannot be used.
EMPTY_COLUMN = "it is empty"

# Beyond these powers of ten, pyarrow writes a number with an exponent.
_LEAST_POWER = 6
_LARGEST_POWER = 10


@dataclass(frozen=True)
class Field:
    """A column's name and kind. because: why its kind is `other`."""

    name: str
    kind: ValueKind
    because: str | None = None


class Values(Protocol):
    """The values of one column."""

    kind: ValueKind

    def is_missing(self) -> list[int]:
        """The row numbers without a value, counted from 0; NaN counts as missing."""
        ...

    def num_missing(self) -> int:
        """Number of rows without a value."""
        ...

    def numbers(self, fill: float | None) -> Tensor:
        """All values (rows,): int64 if they and `fill` are integers, else fp64."""
        ...

    def texts(self) -> set[str]:
        """The distinct values as strings, without missing ones."""
        ...

    def codes(self, vocabulary: Sequence[str], fill: str | None) -> Tensor:
        """The index of each value in the vocabulary (rows,), int64; -1 where it is not in there."""
        ...

    def text(self, row: int) -> str:
        """A value as a string."""
        ...


class ArrowValues:
    """A column of a pyarrow table."""

    def __init__(self, column: Any) -> None:
        self._column = column
        self.kind: ValueKind = field_of("", column.type).kind

    def is_missing(self) -> list[int]:
        """See Values."""
        nulls = self._nulls().to_numpy(zero_copy_only=False)
        rows: list[int] = nulls.nonzero()[0].tolist()
        return rows

    def num_missing(self) -> int:
        """See Values."""
        compute = library("pyarrow.compute", package="pyarrow")
        return int(compute.sum(self._nulls()).as_py() or 0)

    def _nulls(self) -> Any:
        compute = library("pyarrow.compute", package="pyarrow")
        return compute.is_null(self._column, nan_is_null=True)

    def numbers(self, fill: float | None) -> Tensor:
        """See Values."""
        compute = library("pyarrow.compute", package="pyarrow")
        column = self._column
        is_whole = self.kind == "whole" and (fill is None or is_whole_number(fill))
        if not is_whole:
            column = column.cast("int8") if self.kind == "truth" else column
            # Rounds integers that fp64 cannot represent, as fp32 rounds most others.
            column = column.cast("float64", safe=False)
        if fill is not None and is_whole:
            column = compute.fill_null(column.cast("int64"), int(fill))
        elif fill is not None:
            column = compute.if_else(compute.is_nan(column), None, column)
            column = compute.fill_null(column, fill)
        array = column.to_numpy().astype("int64" if is_whole else "float64")
        return torch.from_numpy(array)

    def texts(self) -> set[str]:
        """See Values."""
        values = self._column.cast("string").unique().to_pylist()
        return {value for value in values if value is not None}

    def codes(self, vocabulary: Sequence[str], fill: str | None) -> Tensor:
        """See Values."""
        arrow = library("pyarrow", package="pyarrow")
        compute = library("pyarrow.compute", package="pyarrow")
        column = self._column.cast("string")
        if fill is not None:
            column = compute.fill_null(column, fill)
        codes = compute.index_in(column, value_set=arrow.array(vocabulary, "string"))
        return torch.from_numpy(compute.fill_null(codes, -1).to_numpy().astype("int64"))

    def text(self, row: int) -> str:
        """See Values."""
        return str(self._column[row].cast("string").as_py())


class PlainValues:
    """A column read by pure Python. cells: numbers, booleans or strings; None is missing."""

    def __init__(self, kind: ValueKind, cells: Sequence[Any]) -> None:
        self.kind: ValueKind = kind
        self._cells = cells

    def is_missing(self) -> list[int]:
        """See Values."""
        # Only NaN differs from itself.
        return [row for row, cell in enumerate(self._cells) if cell is None or cell != cell]

    def num_missing(self) -> int:
        """See Values."""
        return len(self.is_missing())

    def numbers(self, fill: float | None) -> Tensor:
        """See Values."""
        is_whole = self.kind == "whole" and (fill is None or is_whole_number(fill))
        dtype = torch.int64 if is_whole else torch.float64
        if fill is None:
            return torch.tensor(self._cells, dtype=dtype)
        filled = int(fill) if is_whole else fill
        cells = [filled if cell is None or cell != cell else cell for cell in self._cells]
        return torch.tensor(cells, dtype=dtype)

    def texts(self) -> set[str]:
        """See Values."""
        return {value for value in self._texts() if value is not None}

    def codes(self, vocabulary: Sequence[str], fill: str | None) -> Tensor:
        """See Values."""
        code_of: dict[str | None, int] = {value: code for code, value in enumerate(vocabulary)}
        if fill is not None:
            code_of[None] = code_of.get(fill, -1)
        return torch.tensor([code_of.get(value, -1) for value in self._texts()], dtype=torch.int64)

    def text(self, row: int) -> str:
        """See Values."""
        return str(cell_text(self._cells[row]))

    def _texts(self) -> Iterator[str | None]:
        return map(cell_text, self._cells)


def cell_text(cell: Any) -> str | None:
    """Formats a value as pyarrow does when casting to a string."""
    if isinstance(cell, bool):
        return "true" if cell else "false"
    if not isinstance(cell, float):
        return None if cell is None else str(cell)
    if cell != cell or cell in (float("inf"), float("-inf")):
        return str(cell)
    # Both use the shortest digits that give the same number.
    number = Decimal(repr(cell))
    if not number:
        return "-0" if number.is_signed() else "0"
    power = number.adjusted()
    if -_LEAST_POWER <= power < _LARGEST_POWER:
        return f"{number.normalize():f}"
    return f"{number.scaleb(-power).normalize():f}e{power:+d}"


def is_whole_number(value: float) -> bool:
    """Whether a number is an integer that fp64 represents exactly."""
    return value.is_integer() and abs(value) <= 2**53


def field_of(name: str, kind: Any) -> Field:
    """A column of a pyarrow type."""
    types = library("pyarrow.types", package="pyarrow")
    inner = kind.value_type if types.is_dictionary(kind) else kind
    if types.is_string(inner) or types.is_large_string(inner):
        return Field(name, "text")
    if inner is kind:
        if types.is_integer(kind):
            return Field(name, "whole")
        if types.is_floating(kind) or types.is_decimal(kind):
            return Field(name, "fraction")
        if types.is_boolean(kind):
            return Field(name, "truth")
    if types.is_null(inner):
        return Field(name, "other", EMPTY_COLUMN)
    because = "its text is not UTF-8" if types.is_binary(inner) else f"it holds {inner} values"
    return Field(name, "other", because)


def fields_of(schema: Any) -> tuple[Field, ...]:
    """The columns of a pyarrow schema."""
    return tuple(field_of(column.name, column.type) for column in schema)


def as_values(column: Any) -> Values:
    """A column of a pyarrow table, or one read by pure Python."""
    return column if isinstance(column, PlainValues) else ArrowValues(column)


def texts_of(pieces: Iterable[Any]) -> set[str]:
    """The distinct strings of a column that arrives piece by piece."""
    distinct: set[str] = set()
    for piece in pieces:
        distinct |= as_values(piece).texts()
    return distinct
