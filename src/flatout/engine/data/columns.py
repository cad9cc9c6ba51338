"""Converts the columns of a table to tensors: each column's kind, and the codes of its values."""

from __future__ import annotations

import contextlib
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from flatout.engine.data.plain_csv import NotATable
from flatout.engine.data.values import Field, ValueKind, as_values, texts_of
from flatout.engine.runtime.user_code import kind_text
from flatout.errors import UsageError, nearest
from flatout.system.csv_quotes import StrayQuote

Arrow = Any
Value = float | str

# Errors name this many rows; the others are counted.
_MAX_ROWS_SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """Options for reading a table; see `csv` for the meaning of each."""

    name: str
    target: str | None
    columns: Sequence[str] | None
    vocabularies: Mapping[str, Sequence[str] | None] | None
    fill: Mapping[str, Value] | None
    delimiter: str = ","


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The rules that turn a table into tensors.

    numbers: columns that go into one fp32 tensor, in this order.
    categories: columns that go into one tensor of codes, in this order.
    target: the column to predict, or None; `vocabularies` has it if it is categorical.
    vocabularies: for each categorical column, the value that each code stands for.
    fill: replacements for missing values, for the columns where these are allowed.
    name: of the table, for messages.
    kinds: what each column that is read holds.
    delimiter: of a CSV file.
    is_new: the rows are input for prediction by a trained model.
    """

    name: str
    numbers: tuple[str, ...]
    categories: tuple[str, ...]
    target: str | None
    vocabularies: dict[str, tuple[str, ...]]
    fill: dict[str, Value]
    kinds: dict[str, ValueKind]
    delimiter: str = ","
    is_new: bool = False

    @property
    def names(self) -> list[str]:
        """All columns that are read."""
        return [*self.numbers, *self.categories, *([self.target] if self.target else [])]

    def tensors(self, table: Arrow) -> tuple[Tensor, ...]:
        """Numbers (rows, columns) in fp32, codes (rows, columns) in int64, target (rows,).

        Parts that the table does not have are left out.

        Raises:
            UsageError: missing-values, unknown-category.
        """
        with readable(self.name):
            return self._tensors(table)

    def check_same(self, before: Columns) -> None:
        """Refuses columns that a model trained on `before` would misread.

        Raises:
            UsageError: training-data-changed.
        """
        reason = self._difference(before)
        if reason is not None:
            raise UsageError(
                "training-data-changed",
                f"{self.name} is not the table that the run started with.",
                because=reason,
                fix="restore the table, or start a new run on this one",
            )

    def _difference(self, before: Columns) -> str | None:
        if self.target != before.target:
            return f"the target is `{self.target}`; it was `{before.target}`"
        for now, then in ((self.numbers, before.numbers), (self.categories, before.categories)):
            if now != then:
                return f"its columns are {_shortened(now)}; they were {_shortened(then)}"
        for name, values in before.vocabularies.items():
            now = self.vocabularies.get(name, ())
            other = sorted(set(now).symmetric_difference(values)) or now
            if now != values:
                return f"the values of `{name}` differ in {_shortened(other)}"
        return None

    def _tensors(self, table: Arrow) -> tuple[Tensor, ...]:
        self._check_missing(table)
        parts = []
        if self.numbers:
            numbers = torch.empty(table.num_rows, len(self.numbers))
            for index, name in enumerate(self.numbers):
                numbers[:, index] = self._numbers(table, name)
            parts.append(numbers)
        if self.categories:
            parts.append(torch.stack([self._codes(table, name) for name in self.categories], 1))
        if self.target is not None:
            is_category = self.target in self.vocabularies
            parts.append((self._codes if is_category else self._numbers)(table, self.target))
        return tuple(parts)

    def _numbers(self, table: Arrow, name: str) -> Tensor:
        fill = float(self.fill[name]) if name in self.fill else None
        values = as_values(table[name]).numbers(fill)
        # The classes of a target stay integers; everything else is a quantity.
        is_class = values.dtype == torch.int64 and name == self.target
        return values if is_class else values.float()

    def _codes(self, table: Arrow, name: str) -> Tensor:
        fill = str(self.fill[name]) if name in self.fill else None
        values = as_values(table[name])
        codes = values.codes(self.vocabularies[name], fill)
        rows = codes.lt(0).nonzero().flatten().tolist()
        if rows:
            raise UsageError(
                "unknown-category",
                f"column `{name}` of {self.name} has the value {values.text(rows[0])!r}, which "
                "is not in its vocabulary.",
                because=f"found in {_rows_text(rows)}; the vocabulary has "
                f"{_shortened(self.vocabularies[name])}",
                fix="use a value that the model was trained on, or remove the row"
                if self.is_new
                else "pass a vocabulary of all values",
            )
        return codes

    def _check_missing(self, table: Arrow) -> None:
        counts = {
            name: as_values(table[name]).num_missing()
            for name in self.names
            if name not in self.fill
        }
        missing = {name: count for name, count in counts.items() if count}
        if missing:
            shown = ", ".join(f"{count:,} in `{name}`" for name, count in missing.items())
            first = next(iter(missing))
            raise UsageError(
                "missing-values",
                f"{self.name} has missing values: {shown}.",
                because=f"`{first}` is empty in {_rows_text(as_values(table[first]).is_missing())}",
                fix="fill them in, or remove these rows"
                if self.is_new
                else f"give a replacement, fill={{{first!r}: ...}}, or leave the column out",
            )


def _rows_text(rows: Sequence[int]) -> str:
    """Row numbers, counted from 1."""
    shown = ", ".join(f"{row + 1:,}" for row in rows[:_MAX_ROWS_SHOWN])
    more = f" and {len(rows) - _MAX_ROWS_SHOWN:,} more" if len(rows) > _MAX_ROWS_SHOWN else ""
    return f"row {shown}" if len(rows) == 1 else f"rows {shown}{more}"


def _shortened(values: Sequence[str], most: int = 8) -> str:
    shown = ", ".join(map(repr, values[:most]))
    return f"{shown} and {len(values) - most:,} more" if len(values) > most else shown


def columns_of(
    options: TableOptions, fields: Sequence[Field], read: Callable[[str], Iterable[Arrow]]
) -> Columns:
    """Determines the kind of each column; `read` gives all values of a column, piece by piece.

    Raises:
        UsageError: column-not-found, column-of-unknown-kind, bad-data-option.
    """
    _check_by_column("fill", options.fill)
    _check_by_column("vocabularies", options.vocabularies)
    by_name = {field.name: field for field in fields}
    chosen = _chosen(options, [field.name for field in fields])
    given = {name: tuple(values or ()) for name, values in (options.vocabularies or {}).items()}
    fill = dict(options.fill or {})
    targets = [] if options.target is None else [options.target]
    kinds = {
        name: "category" if name in given else _role(options.name, by_name[name])
        for name in [*chosen, *targets]
    }
    for name, value in fill.items():
        if name in kinds:
            _check_fill(name, value, is_number=kinds[name] == "number")
    with readable(options.name):
        vocabularies = {
            name: given.get(name) or _values(name, options, read(name), is_requested=name in given)
            for name, kind in kinds.items()
            if kind == "category"
        }
    return Columns(
        name=options.name,
        numbers=tuple(name for name in chosen if kinds[name] == "number"),
        categories=tuple(name for name in chosen if kinds[name] == "category"),
        target=options.target,
        vocabularies=vocabularies,
        fill=fill,
        kinds={name: by_name[name].kind for name in kinds},
        delimiter=options.delimiter,
    )


def _check_by_column(option: str, value: Any) -> None:
    if value is not None and not isinstance(value, Mapping):
        raise UsageError(
            "bad-data-option",
            f"`{option}` is {kind_text(value)}, not a dict by column.",
            fix=f"name the columns: {option}={{'COLUMN': ...}}",
        )


def _check_fill(name: str, value: Any, *, is_number: bool) -> None:
    if not _is_real(value) and (is_number or not isinstance(value, str)):
        kind = "number" if is_number else "string"
        raise UsageError(
            "bad-data-option",
            f"`fill` has {value!r:.60} for the column `{name}`, which holds {kind}s.",
            fix=f"give a {kind}",
        )


def _is_real(value: Any) -> bool:
    if not isinstance(value, Real):
        return False
    try:
        float(value)
    except OverflowError:  # An integer too large for fp64.
        return False
    return True


def _chosen(options: TableOptions, names: list[str]) -> list[str]:
    """The input columns, after checking that all named columns exist."""
    named = [*(options.columns or ()), *(options.vocabularies or ()), *(options.fill or ())]
    for name in [*named, *([] if options.target is None else [options.target])]:
        if name not in names:
            raise UsageError(
                "column-not-found",
                f"{options.name} has no column `{name}`.",
                fix=nearest(name, names),
            )
    inputs = names if options.columns is None else list(options.columns)
    chosen = [name for name in inputs if name != options.target]
    twice = [name for name in [*chosen, options.target] if names.count(str(name)) > 1]
    twice += [name for name in chosen if chosen.count(name) > 1]
    if twice:
        raise UsageError(
            "column-of-unknown-kind",
            f"there are two columns `{twice[0]}` in {options.name}.",
            fix="give each column its own name, and name each once",
        )
    return chosen


def _role(table: str, field: Field) -> str:
    if field.kind != "other":
        return "category" if field.kind == "text" else "number"
    raise UsageError(
        "column-of-unknown-kind",
        f"column `{field.name}` of {table} holds neither numbers nor text.",
        because=field.because,
        fix="leave it out of the columns to use: columns=[...]; or convert it to numbers first",
    )


def _values(
    name: str, options: TableOptions, pieces: Iterable[Arrow], *, is_requested: bool
) -> tuple[str, ...]:
    texts = texts_of(pieces)
    others = sorted(value for value in texts if not _is_number(value))
    if not is_requested and others and len(others) < len(texts) / 2:
        raise UsageError(
            "column-of-unknown-kind",
            f"column `{name}` of {options.name} mixes numbers and text.",
            because=f"among its values: {', '.join(map(repr, others[:3]))}",
            fix="leave missing numbers empty; or, if its values are categories, say "
            f"so: vocabularies={{{name!r}: None}}",
        )
    filled = options.fill and options.fill.get(name)
    return tuple(sorted(texts if filled is None else texts | {str(filled)}))


def _is_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


@contextlib.contextmanager
def readable(name: str) -> Iterator[None]:
    """Turns errors in reading or converting a table into a UsageError.

    Raises:
        UsageError: table-not-readable.
    """
    # If pyarrow was not imported, none of its exceptions can occur.
    arrow = sys.modules.get("pyarrow")
    wrong: tuple[type[Exception], ...] = (
        OSError, EOFError, zlib.error, NotATable, StrayQuote,
    )  # fmt: skip
    if arrow is not None:
        wrong = (*wrong, arrow.ArrowException)
    try:
        yield
    except wrong as error:
        raise UsageError(
            "table-not-readable",
            f"{name} cannot be read as a table.",
            because=" ".join(str(error).split()),
            fix="correct the file; a CSV file has its column names in the first line, and one "
            "value for each of them in every other line",
        ) from error
