"""Charts of a load test as SVG: lines stretch with the page, text keeps its size."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from html import escape

import msgspec

_HEIGHT, _BOTTOM = 200, 22
_NUM_TICKS = 5
_STEPS = (1.0, 2.0, 5.0, 10.0)

Points = Sequence[tuple[float, float]]
Format = Callable[[float], str]


class Axis(msgspec.Struct, frozen=True):
    """The range of an axis. text: of a value, for its ticks."""

    low: float
    high: float
    text: Format
    is_log: bool = False
    marks: tuple[float, ...] = ()

    def place(self, value: float) -> float:
        """Percent from its beginning."""
        low, high, value = self.low, self.high, min(max(value, self.low), self.high)
        if self.is_log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return 100 * (value - low) / (high - low)

    @property
    def ticks(self) -> list[float]:
        """Values with a number."""
        if self.marks:
            return [one for one in self.marks if self.low <= one <= self.high]
        if self.is_log:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            found = [m * 10.0**power for power in powers for m in (1, 2, 5)]
            found = [one for one in found if self.low <= one <= self.high]
            return found[:: max(1, math.ceil(len(found) / _NUM_TICKS))]
        raw = (self.high - self.low) / _NUM_TICKS
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(m * power for m in _STEPS if m * power >= raw)
        first = math.ceil(self.low / step)
        return [step * n for n in range(first, math.floor(self.high / step) + 1)]


def axis_from_zero(values: Sequence[float], text: Format) -> Axis:
    """From 0 to a little above the largest value."""
    return Axis(0.0, 1.08 * max(values, default=1.0) or 1.0, text)


def axis_of_logs(values: Sequence[float], text: Format) -> Axis:
    """Around positive values, logarithmic."""
    return Axis(min(values) / 1.3, max(values) * 1.3, text, is_log=True)


class LoadCurve(msgspec.Struct, frozen=True):
    """A line. kind: the class of its color. is_dotted: its points are marked."""

    name: str
    points: Points
    kind: str = "first"
    is_dotted: bool = False


def plot(curves: Sequence[LoadCurve], x: Axis, y: Axis, limit: float | None = None) -> str:
    """Lines in one frame. limit: a value of y that is marked."""
    parts = [*_grid(x, y)]
    if limit is not None and y.low < limit < y.high:
        top = _from_top(y, limit)
        parts.append(f'<line class="limit" x1="0%" x2="100%" y1="{top:.1f}" y2="{top:.1f}"/>')
    for curve in curves:
        places = [(x.place(a), _from_top(y, b)) for a, b in curve.points]
        text = " ".join(f"{a:.2f},{b:.1f}" for a, b in places)
        parts.append(
            f'<svg viewBox="0 0 100 {_HEIGHT}" preserveAspectRatio="none" width="100%"'
            f' height="{_HEIGHT}"><polyline class="{curve.kind}" points="{text}"/></svg>'
        )
        if curve.is_dotted:
            parts += [
                f'<circle class="{curve.kind}" cx="{a:.2f}%" cy="{b:.1f}" r="3.5"/>'
                for a, b in places
            ]
    label = escape(", ".join(curve.name for curve in curves))
    return f'<svg class="plot" role="img" aria-label="{label}">{"".join(parts)}</svg>'


def legend(curves: Sequence[LoadCurve]) -> str:
    """The names of lines in their colors."""
    return "".join(f'<span class="{curve.kind}">{escape(curve.name)}</span> ' for curve in curves)


def _from_top(y: Axis, value: float) -> float:
    return _HEIGHT * (1 - y.place(value) / 100)


def _grid(x: Axis, y: Axis) -> Iterator[str]:
    for tick in y.ticks:
        top = _from_top(y, tick)
        yield f'<line class="grid" x1="0%" x2="100%" y1="{top:.1f}" y2="{top:.1f}"/>'
        yield f'<text x="0.3%" y="{top - 3:.1f}">{escape(y.text(tick))}</text>'
    for tick in x.ticks:
        place = x.place(tick)
        # A number at an edge must not be cut off.
        anchor = "start" if place < 4 else "end" if place > 96 else "middle"
        yield f'<line class="grid" x1="{place:.2f}%" x2="{place:.2f}%" y1="0" y2="{_HEIGHT}"/>'
        yield (
            f'<text class="{anchor}" x="{place:.2f}%" y="{_HEIGHT + _BOTTOM - 6}">'
            f"{escape(x.text(tick))}</text>"
        )
