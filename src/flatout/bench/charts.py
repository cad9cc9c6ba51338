"""Charts of the report as SVG in percent of their width, so that text keeps its size on a phone.

Every text that comes from a file is escaped here. Colors are classes of report.html.tmpl.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from statistics import median

import msgspec

from flatout.schema.bench import BenchFile, BenchRow
from flatout.schema.bench_comparison import ComparisonVerdict
from flatout.schema.tuning import Interval
from flatout.schema.units import quantity_text

# The scale of ratios reaches at least from x0.8 to x1.25, and never beyond x16.
_NARROWEST, _WIDEST = math.log(1.25), math.log(16)
_TICKS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 0.8, 0.9, 0.95, 1, 1.05, 1.1, 1.25, 2, 4, 8, 16)
_LEAST_TICK_DISTANCE = 14.0
# More dots cannot be told apart.
_MOST_DOTS = 200
_ROOFLINE_HEIGHT = 260
_LABEL_HEIGHT = 15
# In percent; the rest is for the names of the roofs.
_PLOT_WIDTH = 63.0
_VERDICT_CLASSES: dict[ComparisonVerdict, str] = {
    "faster": "good", "better": "good", "slower": "bad", "worse": "bad", "cannot tell": "unclear",
}  # fmt: skip


def verdict_class(verdict: ComparisonVerdict) -> str:
    """The class of a verdict's color."""
    return _VERDICT_CLASSES[verdict]


def ratio_scale(ratios: Sequence[Interval]) -> float:
    """The logarithm at the edges of a chart of these ratios."""
    reach = [abs(math.log(edge)) for one in ratios for edge in (one.low, one.high)]
    return min(max([_NARROWEST, *(1.05 * one for one in reach)]), _WIDEST)


def ratio_bar(ratio: Interval, verdict: ComparisonVerdict, scale: float) -> str:
    """A bar from no difference to the ratio, with its interval as a whisker."""
    low, middle, high = (_place(one, scale) for one in (ratio.low, ratio.middle, ratio.high))
    kind = verdict_class(verdict)
    left, width = min(50.0, middle), abs(middle - 50.0)
    return (
        '<svg class="bar" aria-hidden="true">'
        f'<rect class="{kind}" x="{left:.2f}%" y="5" width="{width:.2f}%" height="12"/>'
        f'<line class="one" x1="50%" x2="50%" y1="0" y2="22"/>'
        f'<line class="whisker" x1="{low:.2f}%" x2="{high:.2f}%" y1="11" y2="11"/>'
        f'<line class="whisker" x1="{low:.2f}%" x2="{low:.2f}%" y1="7" y2="15"/>'
        f'<line class="whisker" x1="{high:.2f}%" x2="{high:.2f}%" y1="7" y2="15"/></svg>'
    )


def ratio_axis(scale: float) -> str:
    """The numbers below such bars."""
    texts, shown = [], list[float]()
    # x1 first, so that it always has its number.
    for tick in sorted(_TICKS, key=lambda tick: abs(math.log(tick))):
        place = _place(tick, scale)
        is_near = any(abs(place - other) < _LEAST_TICK_DISTANCE for other in shown)
        if abs(math.log(tick)) <= scale and not is_near:
            texts.append(f'<text x="{place:.2f}%" y="12">x{tick:g}</text>')
            shown.append(place)
    return f'<svg class="bar axis" aria-hidden="true">{"".join(texts)}</svg>'


def sample_strip(samples: Sequence[float], ends: tuple[float, float], far: Sequence[float]) -> str:
    """Every sample as a dot, the first at the top; outliers are hollow."""
    low, high = ends
    every = math.ceil(len(samples) / _MOST_DOTS)
    width = high - low or abs(high) or 1.0
    outliers = set(far)
    # An outlier is shown whatever its number.
    shown = [one for number, one in enumerate(samples) if number % every == 0 or one in outliers]
    dots = []
    for number, sample in enumerate(shown):
        x = 2 + 96 * (sample - low) / width if high > low else 50.0
        y = 3 + 16 * number / max(len(shown) - 1, 1)
        kind = "far" if sample in outliers else "dot"
        dots.append(f'<circle class="{kind}" cx="{x:.2f}%" cy="{y:.1f}" r="2.2"/>')
    if samples:
        x = 2 + 96 * (median(samples) - low) / width if high > low else 50.0
        dots.append(f'<line class="middle" x1="{x:.2f}%" x2="{x:.2f}%" y1="0" y2="22"/>')
    return f'<svg class="bar strip" aria-hidden="true">{"".join(dots)}</svg>'


class RooflineScale(msgspec.Struct, frozen=True, kw_only=True):
    """Axes that several roofline plots share: logarithms to base 10."""

    left: float
    right: float
    bottom: float
    top: float

    def x(self, intensity: float) -> float:
        """Percent of the width."""
        return _PLOT_WIDTH * (math.log10(intensity) - self.left) / (self.right - self.left)

    def y(self, flops: float) -> float:
        """Pixels from the top."""
        return _ROOFLINE_HEIGHT * (self.top - math.log10(flops)) / (self.top - self.bottom)


def roofs(file: BenchFile) -> tuple[BenchRow | None, list[BenchRow]]:
    """The fastest memory row and all matrix products of a file."""
    rows = [row for row in file.rows if row.samples]
    memory = [row for row in rows if row.id.startswith("limits/memory/") and row.unit == "B/s"]
    compute = [row for row in rows if row.id.startswith("limits/matmul/") and row.unit == "flop/s"]
    fastest = max(memory, key=lambda row: median(row.samples), default=None)
    return fastest, sorted(compute, key=lambda row: -median(row.samples))


def roofline_scale(files: Sequence[BenchFile]) -> RooflineScale | None:
    """Axes for all files that have both roofs; None if none has."""
    ridges, tops = [], []
    for memory, compute in map(roofs, files):
        if memory is not None and compute:
            bandwidth = median(memory.samples)
            peaks = [median(row.samples) for row in compute]
            peaks += [row.vendor for row in compute if row.vendor is not None]
            ridges += [math.log10(peak / bandwidth) for peak in peaks]
            tops += [math.log10(peak) for peak in peaks]
    if not ridges:
        return None
    left, right = math.floor(min(ridges)) - 1, math.ceil(max(ridges)) + 1
    return RooflineScale(left=left, right=right, bottom=min(tops) - 0.9, top=max(tops) + 0.15)


def roofline(file: BenchFile, scale: RooflineScale) -> str:
    """The roofs of one file: attainable FLOPs per second by FLOPs per byte (Williams 2009)."""
    memory, compute = roofs(file)
    if memory is None or not compute:
        return ""
    bandwidth = median(memory.samples)
    parts = list(_roofline_grid(scale))
    highest = max(median(row.samples) for row in compute)
    start = max(scale.left, scale.bottom - math.log10(bandwidth))
    x1, y1 = scale.x(10**start), scale.y(bandwidth * 10**start)
    x2, y2 = scale.x(highest / bandwidth), scale.y(highest)
    parts.append(f'<line class="roof" x1="{x1:.2f}%" y1="{y1:.1f}" x2="{x2:.2f}%" y2="{y2:.1f}"/>')
    used, names = -math.inf, []
    for row in compute:
        peak = median(row.samples)
        x, y = scale.x(peak / bandwidth), scale.y(peak)
        parts.append(
            f'<line class="roof" x1="{x:.2f}%" y1="{y:.1f}" x2="{_PLOT_WIDTH}%" y2="{y:.1f}"/>'
        )
        if row.vendor is not None:
            y_vendor = scale.y(row.vendor)
            parts.append(
                f'<line class="vendor" x1="{x:.2f}%" y1="{y_vendor:.1f}" x2="{_PLOT_WIDTH}%"'
                f' y2="{y_vendor:.1f}"/>'
            )
        # Roofs that are close would have their names on top of each other.
        used = max(y + _LABEL_HEIGHT / 3, used + _LABEL_HEIGHT)
        text = f"{row.id.rpartition('/')[2]} {quantity_text(peak, row.unit)}"
        names.append(f'<text x="{_PLOT_WIDTH + 1}%" y="{used:.1f}">{escape(text)}</text>')
    name = f"{row_name(memory)} {quantity_text(bandwidth, 'B/s')}"
    x, y = _PLOT_WIDTH - 1, _ROOFLINE_HEIGHT - 7
    parts += [*names, f'<text class="end" x="{x}%" y="{y}">{escape(name)}</text>']
    label = f"Roofline: {name}"
    return f'<svg class="roofline" role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'


def row_name(row: BenchRow) -> str:
    """A short name of a row of the roofline."""
    return " ".join(row.id.split("/")[1:])


def _roofline_grid(scale: RooflineScale) -> Iterator[str]:
    for power in range(math.ceil(scale.left), math.floor(scale.right) + 1):
        x = scale.x(10.0**power)
        yield f'<line class="grid" x1="{x:.2f}%" x2="{x:.2f}%" y1="0" y2="{_ROOFLINE_HEIGHT}"/>'
        if scale.left < power:
            number = f"{10.0**power:g}"
            yield f'<text class="tick" x="{x:.2f}%" y="{_ROOFLINE_HEIGHT + 14}">{number}</text>'
    for power in range(math.ceil(scale.bottom), math.floor(scale.top) + 1):
        y = scale.y(10.0**power)
        yield f'<line class="grid" x1="0%" x2="{_PLOT_WIDTH}%" y1="{y:.1f}" y2="{y:.1f}"/>'
        number = quantity_text(10.0**power, "flop/s")
        yield f'<text class="tick left" x="0.5%" y="{y - 3:.1f}">{number}</text>'


def _place(ratio: float, scale: float) -> float:
    """Percent from the left, with no difference in the middle; outside is at the edge."""
    return min(max(50 + 49 * math.log(ratio) / scale, 0.5), 99.5)
