"""Predictions in arrays as rows: a value by name for each sample. NumPy alone, no framework."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy

from flatout.errors import UsageError
from flatout.schema.units import counted_text

Array = numpy.ndarray[Any, Any]


def array_rows(
    outputs: Mapping[str, Array], num_samples: int, labels: Sequence[str] | None, top: int
) -> list[dict[str, Any]]:
    """A row for each sample; see `rows_of`."""
    rows: list[dict[str, Any]] = [{} for _ in range(num_samples)]
    for name, output in outputs.items():
        for row, values in zip(rows, array_values(name, output, labels, top), strict=True):
            row |= values
    return rows


def array_values(
    name: str, output: Array, labels: Sequence[str] | None, top: int
) -> list[dict[str, Any]]:
    """What each sample's row gets of one output.

    Args:
        name: of the output; `prediction` where it is the only one.
        output: the first dimension counts samples.
        labels, top: as of `rows_of`.

    Raises:
        UsageError: bad-prediction.
    """
    is_only = name == "prediction"
    if labels is not None and output.ndim == 2 and output.shape[1] == len(labels):
        return _classes(output, labels, min(top, len(labels)), "" if is_only else f"{name}_")
    if labels is not None and is_only and output.ndim == 1 and output.dtype.kind != "f":
        return [{"label": _label(number, labels)} for number in output.tolist()]
    # A column of numbers is a number for each sample.
    is_column = output.ndim == 2 and output.shape[1] == 1
    return [{name: value} for value in (output[:, 0] if is_column else output).tolist()]


def _label(number: int, labels: Sequence[str]) -> str:
    # A negative number would name a class from the end.
    if not 0 <= number < len(labels):
        raise UsageError(
            "bad-prediction",
            f"class {number} was predicted; `labels` names "
            f"{counted_text(len(labels), 'class', 'classes')}, from 0.",
            fix="give `labels` a name for each class that `predict` can return",
        )
    return labels[number]


def _classes(
    probabilities: Array, labels: Sequence[str], top: int, prefix: str
) -> list[dict[str, Any]]:
    if top == 1:
        numbers = probabilities.argmax(axis=1)[:, numpy.newaxis]
    else:
        numbers = numpy.argsort(probabilities, axis=1, kind="stable")[:, : -top - 1 : -1]
    # Much sooner than `take_along_axis`, for one sample.
    values = probabilities[numpy.arange(len(probabilities))[:, numpy.newaxis], numbers]
    rows = []
    for row_values, row_numbers in zip(values.tolist(), numbers.tolist(), strict=True):
        row: dict[str, Any] = {}
        for position, (value, number) in enumerate(zip(row_values, row_numbers, strict=True)):
            end = "" if position == 0 else f"_{position + 1}"
            row |= {f"{prefix}label{end}": labels[number], f"{prefix}probability{end}": value}
        rows.append(row)
    return rows
