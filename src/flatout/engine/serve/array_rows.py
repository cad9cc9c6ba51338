"""Predictions in NumPy arrays as rows, as `predict/rows.py` has them of tensors. No framework."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy

from flatout.engine.serve.input_arrays import Array


def array_rows(
    outputs: Mapping[str, Array], num_samples: int, labels: Sequence[str] | None, top: int
) -> list[dict[str, Any]]:
    """A row for each sample: label and probability of the likeliest classes, or the numbers."""
    rows: list[dict[str, Any]] = [{} for _ in range(num_samples)]
    for name, output in outputs.items():
        is_only = name == "prediction"
        if labels is not None and output.ndim == 2 and output.shape[1] == len(labels):
            values = _classes(output, labels, min(top, len(labels)), "" if is_only else f"{name}_")
        elif labels is not None and is_only and output.ndim == 1 and output.dtype.kind in "iu":
            values = [{"label": labels[number]} for number in output.tolist()]
        else:
            # A column of numbers is a number for each sample.
            is_column = output.ndim == 2 and output.shape[1] == 1
            numbers = (output[:, 0] if is_column else output).tolist()
            values = [{name: number} for number in numbers]
        for row, value in zip(rows, values, strict=True):
            row |= value
    return rows


def _classes(
    probabilities: Array, labels: Sequence[str], top: int, prefix: str
) -> list[dict[str, Any]]:
    order = numpy.argsort(-probabilities, axis=1, kind="stable")[:, :top]
    values = numpy.take_along_axis(probabilities, order, axis=1)
    rows = []
    for row_values, row_numbers in zip(values.tolist(), order.tolist(), strict=True):
        row: dict[str, Any] = {}
        for place, (value, number) in enumerate(zip(row_values, row_numbers, strict=True)):
            end = "" if place == 0 else f"_{place + 1}"
            row |= {f"{prefix}label{end}": labels[number], f"{prefix}probability{end}": value}
        rows.append(row)
    return rows
