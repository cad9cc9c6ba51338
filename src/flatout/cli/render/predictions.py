"""Predictions and evaluations in words and columns, for the code that prints them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flatout.cli.render.wording import DOT, metric_text, metrics_text, validated_name
from flatout.schema.predict_protocol import Evaluated, Loaded, Predicted
from flatout.schema.suggested_command import typed_value
from flatout.schema.units import count_text, percent_text

_LONGEST_NAME = 48
_CELL_WIDTH = 10
_NUM_SHOWN = 5
# A text longer than this, or of several lines, stands below its input.
_LONGEST_CELL = 40


def loaded_text(run: str, loaded: Loaded) -> str:
    """The weights in use: the run, the step they were kept at, and the device."""
    parts = [run, f"weights of step {count_text(loaded.step)}"]
    if loaded.recorded:
        parts.append(metrics_text(loaded.recorded))
    return DOT.join([*parts, loaded.device, loaded.precision])


class PredictionTable:
    """Rows as lines, one by one: nothing is waited for to find out how wide a column is.

    Args:
        longest_input: letters of the longest input's name.
    """

    def __init__(self, longest_input: int) -> None:
        self._name_width = min(_LONGEST_NAME, max(longest_input, len("input")))
        self._names: list[str] | None = None

    def lines(self, row: Predicted) -> Iterator[str]:
        """A row's lines, after a heading where the columns are new."""
        name = shown_input(row)
        texts = {key: value for key, value in row.values.items() if _is_long(value)}
        cells = {key: _cell(key, value) for key, value in row.values.items() if key not in texts}
        if cells and list(cells) != self._names:
            self._names = list(cells)
            yield self._line("input", {key: key for key in cells})
        if cells or not texts:
            yield self._line(name, cells)
        elif texts:
            yield name
        for text in texts.values():
            yield from (f"    {line}".rstrip() for line in str(text).splitlines())

    def _line(self, name: str, cells: dict[str, str]) -> str:
        columns = [f"{cells[key]:>{max(len(key), _CELL_WIDTH)}}" for key in cells]
        return "  ".join([f"{name:<{self._name_width}}", *columns]).rstrip()


def shown_input(row: Predicted) -> str:
    """An input's name, its middle left out where it is long; with the row of one that has many."""
    name = row.input.replace("\n", " ")
    if len(name) > _LONGEST_NAME:
        half = (_LONGEST_NAME - 5) // 2
        name = f"{name[:half]} ... {name[-half:]}"
    return name if row.row is None else f"{name} {count_text(row.row + 1)}"


def _is_long(value: Any) -> bool:
    return isinstance(value, str) and ("\n" in value or len(value) > _LONGEST_CELL)


def _cell(name: str, value: Any) -> str:
    if isinstance(value, float) and name.partition("probability")[1]:
        return percent_text(value)
    if isinstance(value, float):
        # Prices and the like: as they are written, not with an exponent.
        return f"{value:.0f}" if 1e4 <= abs(value) < 1e12 else f"{value:.4g}"
    if isinstance(value, list):
        if value and isinstance(value[0], list):
            return f"{len(value)} x {_cell(name, value[0])}"
        shown = ", ".join(_cell("", item) for item in value[:_NUM_SHOWN])
        return f"{shown}, ... ({len(value)})" if len(value) > _NUM_SHOWN else shown
    return typed_value(value)


def evaluation_rows(loaded: Loaded, evaluated: Evaluated) -> list[tuple[str, str, str]]:
    """The metrics by name: as recorded in training, and as computed now."""
    names = sorted(evaluated.metrics, key=lambda name: name.endswith("loss"))
    return [
        (
            validated_name(name),
            metric_text(name, loaded.recorded[name]) if name in loaded.recorded else "",
            metric_text(name, evaluated.metrics[name]),
        )
        for name in names
    ]


def is_equal(loaded: Loaded, evaluated: Evaluated) -> bool:
    """Whether metrics were recorded, and each is now what it was then."""
    is_any = bool(loaded.recorded.keys() & evaluated.metrics.keys())
    return is_any and not _different(loaded, evaluated)


def _different(loaded: Loaded, evaluated: Evaluated) -> list[str]:
    shared = loaded.recorded.keys() & evaluated.metrics.keys()
    return [name for name in shared if loaded.recorded[name] != evaluated.metrics[name]]


def agreement_text(loaded: Loaded, evaluated: Evaluated) -> str:
    """Whether now and then are the same."""
    shared = loaded.recorded.keys() & evaluated.metrics.keys()
    if not shared:
        return "the run recorded no metrics for these weights"
    different = _different(loaded, evaluated)
    if not different:
        return "identical to the recorded metrics, digit for digit"
    gaps = [
        abs(now - then)
        for name in different
        if (now := evaluated.metrics[name]) is not None
        and (then := loaded.recorded[name]) is not None
    ]
    reasons = f": changed since the run: {', '.join(evaluated.differences)}" * bool(
        evaluated.differences
    )
    largest = f" by at most {max(gaps):.2g}" if gaps else ""
    return f"different from the recorded metrics{largest}{reasons}"
