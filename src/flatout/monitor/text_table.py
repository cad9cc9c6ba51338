"""Tables of text that fit any width: what matters least is left out, and unknown has a footnote."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import msgspec

# Text and style: "", dim, title, good, attention, wrong or selected.
Span = tuple[str, str]
Spans = tuple[Span, ...]

_GAP = 2
_UNKNOWN = "-"
_RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
_BARS = "▁▂▃▄▅▆▇█"
_LEAST_HISTORY, _LONGEST_HISTORY = 8, 60
_LEAST_FIRST = 3


class Cell(msgspec.Struct, frozen=True):
    """A value as text; reason: why it is unknown, where its text is empty."""

    text: str = ""
    style: str = ""
    reason: str | None = None


class Column(msgspec.Struct, frozen=True):
    """A column; of those that do not fit, the one with the highest rank is left out first.

    is_history: its cells are sparklines, which take the width that is left over.
    """

    title: str
    rank: int
    is_right: bool = False
    is_history: bool = False


class Footnotes:
    """Reasons for what is unknown, each with a number."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def mark(self, reason: str) -> str:
        """The raised number of a reason."""
        number = self._numbers.setdefault(reason, len(self._numbers) + 1)
        return str(number).translate(_RAISED)

    def lines(self, width: int) -> list[Spans]:
        """All of them, below what they explain."""
        lines: list[Spans] = []
        for reason, number in self._numbers.items():
            text = f"{str(number).translate(_RAISED)} {reason}"
            lines += [((part, "dim"),) for part in textwrap.wrap(text, max(8, width))]
        return lines


def table_lines(
    columns: Sequence[Column],
    rows: Sequence[Sequence[Cell]],
    width: int,
    notes: Footnotes,
    selected: int | None = None,
) -> list[Spans]:
    """A line of titles and one for each row, none longer than the width.

    selected: the row that is shown as such.
    """
    widths = [
        max([0 if column.is_history else len(column.title), *(_length(row[i]) for row in rows)])
        for i, column in enumerate(columns)
    ]
    shown = _fitting(columns, widths, width)
    used = sum(widths[i] for i in shown) + _GAP * (len(shown) - 1)
    for i in shown:
        if columns[i].is_history:
            widths[i] = min(_LONGEST_HISTORY, max(widths[i] + width - used, _LEAST_HISTORY))
    if used > width:
        # The first is cut for the second, which says how much.
        widths[shown[0]] -= used - width
    titles = [Cell(column.title, "dim") for column in columns]
    lines = []
    for number, row in enumerate([titles, *rows]):
        style = "selected" if selected is not None and number == selected + 1 else None
        lines.append(_line(columns, row, [(i, widths[i]) for i in shown], notes, style))
    return lines


def _fitting(columns: Sequence[Column], widths: Sequence[int], width: int) -> list[int]:
    """The numbers of the columns for which there is room; always that of the lowest rank."""
    # A history of one value says nothing.
    shown = [i for i, one in enumerate(columns) if not (one.is_history and widths[i] <= 1)]

    def least(i: int) -> int:
        return _LEAST_HISTORY if columns[i].is_history else widths[i]

    for i in shown:
        if columns[i].is_history:
            # It takes what is left.
            widths[i] = _LEAST_HISTORY  # type: ignore[index]

    def used() -> int:
        return sum(map(least, shown)) + _GAP * (len(shown) - 1)

    while len(shown) > 2 and used() > width:
        shown.remove(max(shown, key=lambda i: columns[i].rank))
    if len(shown) == 2 and widths[shown[0]] - (used() - width) < _LEAST_FIRST:
        shown.pop()
    return shown


def _line(
    columns: Sequence[Column],
    row: Sequence[Cell],
    places: Sequence[tuple[int, int]],
    notes: Footnotes,
    style: str | None,
) -> Spans:
    spans: list[Span] = []
    for number, (i, width) in enumerate(places):
        cell = row[i]
        text = cell.text
        if not text and cell.reason is not None:
            text = _UNKNOWN + notes.mark(cell.reason)
        if columns[i].is_history:
            text = text[-width:]
        if len(text) > width:
            text = text[: max(0, width - 1)] + "…"
        is_last = number == len(places) - 1
        padded = text.rjust(width) if columns[i].is_right else text.ljust(width)
        gap = "" if is_last else " " * _GAP
        spans.append((padded + gap, style or cell.style))
    return tuple(spans)


def _length(cell: Cell) -> int:
    return len(cell.text) if cell.text or cell.reason is None else 3


def sparkline(values: Sequence[float | None], highest: float = 1.0) -> str:
    """Values from 0 to the highest as bars; a gap where one is unknown."""
    return "".join(
        " " if value is None or highest <= 0 else _BARS[max(0, min(7, int(8 * value / highest)))]
        for value in values
    )
