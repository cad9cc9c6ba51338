"""The kind of data that a data function returned: tensors, a map-style data set, or an iterable."""

from __future__ import annotations

from typing import Any, Literal

import torch

from flatout.engine.feed.feed import is_in_memory, is_map_style
from flatout.engine.runtime.error_map import one_line, raised_at
from flatout.engine.runtime.user_code import kind_text, location_of
from flatout.errors import UsageError

DataKind = Literal["tensors", "map-style", "iterable"]


def data_kind(data: Any) -> DataKind:
    """The kind of data that a factory returned.

    Raises:
        UsageError: data-of-unknown-kind.
    """
    if is_in_memory(data):
        return "tensors"
    _refuse_arrays(data)
    if isinstance(data, torch.utils.data.DataLoader):
        raise UsageError(
            "data-of-unknown-kind",
            "the data is a DataLoader.",
            because="flatout creates the loader itself: workers and batches are part of the recipe",
            fix="return the loader's dataset, and its collate_fn as `collate`",
        )
    no_dataset = (torch.utils.data.IterableDataset, dict, str, bytes)
    if is_map_style(data) and not isinstance(data, no_dataset):
        _check_length(data)
        return "map-style"
    if hasattr(data, "__iter__") and not isinstance(data, dict | str | bytes):
        return "iterable"
    raise UsageError(
        "data-of-unknown-kind",
        f"the data is {kind_text(data)}: not tensors, a dataset or an iterable.",
        because="tensors must share their first dimension; a dataset has __len__ and __getitem__",
        fix=_right_data(data),
    )


def _check_length(data: Any) -> None:
    """Refuses a data set whose `__len__` fails or does not return a number.

    Raises:
        UsageError: data-of-unknown-kind.
    """
    try:
        len(data)
    except (TypeError, ValueError, OverflowError) as error:
        if raised_at(error) is not None:
            raise
        location = location_of(getattr(type(data), "__len__", None))
        raise UsageError(
            "data-of-unknown-kind",
            f"the data's `__len__` fails: {one_line(error)}",
            because=location.with_code if location is not None else None,
            fix="return a whole number from `__len__`: half = len(rows) // 2",
        ) from error


def _right_data(data: Any) -> str:
    if data is None:
        return "return the data: is a `return` missing from the function that builds it?"
    if hasattr(data, "__getitem__") and not isinstance(data, dict | str | bytes):
        return "give the data set a `__len__` that returns its number of samples"
    return "return one of the three kinds; see flatout docs experiments"


def _refuse_arrays(data: Any) -> None:
    """Refuses tables and tuples without tensors: a tuple would be taken for a list of samples.

    Raises:
        UsageError: data-of-unknown-kind.
    """
    columns = "torch.tensor(table[column].to_numpy())"
    if hasattr(data, "to_numpy") and hasattr(data, "columns"):
        raise UsageError(
            "data-of-unknown-kind",
            f"the data is {kind_text(data)}: a table must be converted to tensors.",
            fix=f"return its columns as tensors: {columns}",
        )
    if not isinstance(data, tuple) or not data or not all(map(_is_column, data)):
        return
    kinds = ", ".join(type(column).__name__ for column in data)
    if all(isinstance(column, torch.Tensor) for column in data):
        lengths = ", ".join(str(len(column)) if column.dim() else "a number" for column in data)
        raise UsageError(
            "data-of-unknown-kind",
            f"the data is a tuple of tensors of different lengths: {lengths}.",
            because="tensors must have the same first dimension, the number of samples",
            fix="return as many targets as inputs",
        )
    raise UsageError(
        "data-of-unknown-kind",
        f"the data is a tuple of {kinds}, not of tensors.",
        fix="convert them to tensors: torch.from_numpy(array), or torch.tensor(values)",
    )


def _is_column(value: Any) -> bool:
    is_array = hasattr(value, "__array_interface__") or hasattr(value, "to_numpy")
    return isinstance(value, torch.Tensor | list) or is_array
