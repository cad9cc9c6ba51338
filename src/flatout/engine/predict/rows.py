"""Predictions of a batch as rows: a value by name for each sample, of JSON's own kinds."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from flatout.engine.predict.array_rows import array_values
from flatout.engine.runtime.user_code import kind_text
from flatout.errors import UsageError


def rows_of(
    predictions: Any, num_samples: int, labels: Sequence[str] | None, top: int
) -> list[dict[str, Any]]:
    """A row for each sample.

    Probabilities of the classes that `labels` names become `label` and `probability`, with top > 1
    also `label_2`, `probability_2` and so on. A number of a class becomes its `label`. Pictures
    stay as they are.

    Args:
        predictions: a tensor or list with an entry for each sample, or a dict of such.
        num_samples: how many.
        labels: names of the classes, or None.
        top: how many classes to list for each sample.

    Raises:
        UsageError: bad-prediction.
    """
    rows: list[dict[str, Any]] = [{} for _ in range(num_samples)]
    parts = predictions if isinstance(predictions, dict) else {"prediction": predictions}
    for name, part in parts.items():
        for row, values in zip(rows, _values(name, part, labels, top), strict=True):
            row |= values
    return rows


def _values(name: str, part: Any, labels: Sequence[str] | None, top: int) -> list[dict[str, Any]]:
    if not isinstance(part, Tensor):
        return [{name: value if is_picture(value) else plain_value(value)} for value in part]
    if part.is_complex():
        raise _cannot_be_written("a complex number")
    return array_values(name, part.numpy(), labels, top)


def plain_value(value: Any) -> Any:
    """A value of JSON's own kinds; tensors and arrays become lists."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, str):
        # Halves of characters have no place in JSON.
        return value.encode("utf-8", "replace").decode("utf-8")
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, list | tuple):
        return [plain_value(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain_value(item) for key, item in value.items()}
    raise _cannot_be_written(kind_text(value))


def _cannot_be_written(what: str) -> UsageError:
    return UsageError(
        "bad-prediction",
        f"{what} was predicted for a sample, which cannot be written.",
        because="it is not a number, a string, a list or dict of these, or an image",
        fix="let `predict` return numbers, strings, or tensors of real numbers",
    )


def is_picture(value: Any) -> bool:
    """Whether it is an image of Pillow's, which only a file can hold."""
    pillow = sys.modules.get("PIL.Image")
    return pillow is not None and isinstance(value, pillow.Image)
