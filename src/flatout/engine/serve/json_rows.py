"""Predictions as rows that JSON can hold: pictures as text, or whatever `encode` makes of them."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from typing import Any

from flatout.engine.predict.rows import is_picture, plain_value, rows_of


def json_rows(
    predictions: Any,
    num_samples: int,
    *,
    labels: Sequence[str] | None,
    top: int,
    encode: Callable[[Any], Any] | None,
) -> list[dict[str, Any]]:
    """A row for each sample.

    Args:
        predictions, num_samples, labels, top: as of `predict/rows.py: rows_of`.
        encode: the experiment's own; it gets the prediction of one sample.

    Raises:
        UsageError: bad-prediction; what `encode` raises.
    """
    if encode is not None:
        encoded = [plain_value(encode(_of_sample(predictions, row))) for row in range(num_samples)]
        return [row if isinstance(row, dict) else {"prediction": row} for row in encoded]
    rows = rows_of(predictions, num_samples, labels, top)
    for row in rows:
        for name, value in row.items():
            if is_picture(value):
                row[name] = picture_text(value)
    return rows


def picture_text(picture: Any) -> str:
    """An image of Pillow's as a PNG file in base64."""
    content = io.BytesIO()
    picture.save(content, format="PNG")
    return base64.b64encode(content.getvalue()).decode()


def _of_sample(predictions: Any, row: int) -> Any:
    if isinstance(predictions, dict):
        return {name: part[row] for name, part in predictions.items()}
    return predictions[row]
