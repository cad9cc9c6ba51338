"""Curves as charts: data for the browser, and an SVG picture where there is no JavaScript."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import datetime

import msgspec

from flatout.errors import FlatoutError
from flatout.schema.finding import Finding, finding_from
from flatout.schema.metric_curves import CurveView, MetricCurve, MetricCurves
from flatout.schema.run import Run
from flatout.schema.units import bytes_text, count_text, is_ratio, percent_text
from flatout.system.store.metric_index import metric_curves
from flatout.web.page import PageContext, not_accessible

MOST_CHARTED_RUNS = 100
# What a request may spend on lines of metrics that are not in the index yet.
_BUDGET_S = 0.25
# From this ratio of the largest to the smallest loss on, a linear axis shows a flat line.
_LOG_RATIO = 30.0
_LAST_PANELS = ("learning_rate", "samples_per_s", "memory_bytes", "power_w")
# Colors of Okabe and Ito in style.css; more lines get other dashes.
NUM_COLORS = 7

# Pixels of the picture, and of what is around the curves in it.
WIDTH, HEIGHT = 720, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 78, 12, 10, 30
_NUM_TICKS = 5
_MARKED_POINTS = 40
_DAY_S = 86_400
# Between ticks of an axis of time.
_TIME_WIDTHS_S = (60, 300, 900, 1800, 3600, 10_800, 21_600, 43_200, _DAY_S, 2 * _DAY_S, 5 * _DAY_S,
                  10 * _DAY_S, 20 * _DAY_S)  # fmt: skip


class ChartLine(msgspec.Struct, frozen=True, kw_only=True):
    """A curve in a chart. line: as of `MetricCurve`. color, dash: numbers of classes in style.css.

    values: None where the curve is interrupted.
    num_missing, first_missing_step: values that are not finite.
    """

    run: str
    line: str
    color: int
    dash: int
    steps: list[int]
    values: list[float] | list[float | None]
    num_missing: int = 0
    first_missing_step: int | None = None


class ChartData(msgspec.Struct, frozen=True, kw_only=True):
    """The curves of one panel, of one run or several.

    is_time: steps are seconds since the epoch.
    share_read: of the metrics; below 1 the curves end early. num_unread: damaged lines.
    """

    panel: str
    lines: tuple[ChartLine, ...]
    is_log: bool
    is_time: bool = False
    share_read: float = 1.0
    num_unread: int = 0


class AxisTick(msgspec.Struct, frozen=True):
    """A labelled place on an axis, in pixels."""

    at: float
    label: str


class ChartPath(msgspec.Struct, frozen=True, kw_only=True):
    """A curve as the path of an SVG; dots where it has few points."""

    path: str
    dots: tuple[tuple[float, float], ...]
    color: int
    dash: int


class ChartPicture(msgspec.Struct, frozen=True, kw_only=True):
    """A chart in pixels."""

    paths: tuple[ChartPath, ...]
    x_ticks: tuple[AxisTick, ...]
    y_ticks: tuple[AxisTick, ...]
    width: int = WIDTH
    height: int = HEIGHT
    left: int = _LEFT
    right: int = WIDTH - _RIGHT
    top: int = _TOP
    bottom: int = HEIGHT - _BOTTOM


def charts_of(
    context: PageContext, run_ids: Sequence[str], view: CurveView, panel: str | None = None
) -> tuple[list[ChartData], list[Finding]]:
    """The charts of these runs, the loss first, and what is wrong with runs that have none.

    panel: the only one that is wanted.
    """
    known: dict[str, MetricCurves] = {}
    problems = []
    for run_id in run_ids:
        try:
            known[run_id] = _curves_of(context, run_id, view, panel, _BUDGET_S / len(run_ids))
        except FlatoutError as error:
            problems.append(finding_from(error))
        except OSError as error:
            problems.append(finding_from(not_accessible(error)))
    panels = dict.fromkeys(curve.panel for of_run in known.values() for curve in of_run.curves)
    charts = [_chart(name, run_ids, known) for name in sorted(panels, key=_place_of)]
    return charts, problems


def _curves_of(
    context: PageContext, run_id: str, view: CurveView, panel: str | None, budget_s: float
) -> MetricCurves:
    folder = context.runs.find(run_id)
    row = context.runs.row(folder.path)
    run = row.run if row is not None else None
    created_at = run.header.created_at if isinstance(run, Run) else 0.0
    return metric_curves(folder, created_at, view, panel=panel, budget_s=budget_s)


def _place_of(panel: str) -> int:
    """Where a panel comes in the page: the loss, metrics, then the rest."""
    if panel == "loss":
        return 0
    return 2 + _LAST_PANELS.index(panel) if panel in _LAST_PANELS else 1


def _chart(panel: str, run_ids: Sequence[str], known: dict[str, MetricCurves]) -> ChartData:
    found = [
        (run_id, number, curve)
        for number, run_id in enumerate(run_ids)
        if run_id in known
        for curve in known[run_id].curves
        if curve.panel == panel
    ]
    kinds = list(dict.fromkeys(curve.line for _, _, curve in found))
    lines = [
        _line(run_id, curve, *_look(number, kinds.index(curve.line), is_several=len(run_ids) > 1))
        for run_id, number, curve in found
    ]
    values = _known(lines)
    return ChartData(
        panel=panel,
        lines=tuple(lines),
        is_log=panel == "loss" and bool(values) and min(values) > 0
        and max(values) / min(values) > _LOG_RATIO,
        share_read=min((one.share_read for one in known.values()), default=1.0),
        num_unread=sum(one.num_unread for one in known.values()),
    )  # fmt: skip


def _look(run: int, kind: int, *, is_several: bool) -> tuple[int, int]:
    """Color and dash: of several runs, the color says which run; of one, which curve."""
    if is_several:
        return run % NUM_COLORS, (kind + run // NUM_COLORS) % 4
    return kind % NUM_COLORS, kind // NUM_COLORS % 4


def _line(run_id: str, curve: MetricCurve, color: int, dash: int) -> ChartLine:
    return ChartLine(
        run=run_id, line=curve.line, color=color, dash=dash, steps=curve.steps,
        values=curve.values, num_missing=curve.num_missing,
        first_missing_step=curve.first_missing_step,
    )  # fmt: skip


def picture(chart: ChartData) -> ChartPicture | None:
    """A chart as a picture; None without a single point."""
    steps = [step for line in chart.lines for step in line.steps]
    values = _known(chart.lines)
    if not steps:
        return None
    first, last = min(steps), max(steps)
    scaled = math.log10 if chart.is_log else float
    low, high = scaled(min(values)), scaled(max(values))
    margin = (high - low) * 0.05 or abs(high) * 0.05 or 1.0
    low, high = low - margin, high + margin
    span = last - first or 1

    def x_of(step: float) -> float:
        return round(_LEFT + (step - first) / span * (WIDTH - _LEFT - _RIGHT), 1)

    def y_of(value: float) -> float:
        share = (scaled(value) - low) / (high - low)
        return round(HEIGHT - _BOTTOM - share * (HEIGHT - _TOP - _BOTTOM), 1)

    paths = []
    for line in chart.lines:
        points = [(x_of(step), None if value is None else y_of(value))
                  for step, value in zip(line.steps, line.values, strict=True)]  # fmt: skip
        dots = tuple((x, y) for x, y in points if y is not None)
        dots = dots if len(points) <= _MARKED_POINTS else ()
        path = _path(points)
        paths.append(ChartPath(path=path, dots=dots, color=line.color, dash=line.dash))
    unit = _unit(chart.panel, high)
    y_values = log_ticks(low, high) if chart.is_log else [
        unit * tick for tick in linear_ticks(low / unit, high / unit)
    ]  # fmt: skip
    x_values = [step for step in linear_ticks(first, last) if step == int(step)] or [first]
    x_labels: list[tuple[float, str]] = [(step, count_text(int(step))) for step in x_values]
    if chart.is_time:
        x_labels = time_ticks(first, last)
    return ChartPicture(
        paths=tuple(paths),
        x_ticks=tuple(AxisTick(x_of(step), label) for step, label in x_labels),
        y_ticks=tuple(AxisTick(y_of(value), value_text(chart.panel, value)) for value in y_values),
    )


def _known(lines: Iterable[ChartLine]) -> list[float]:
    return [value for line in lines for value in line.values if value is not None]


def _path(points: Iterable[tuple[float, float | None]]) -> str:
    """The path through points, interrupted where a value is None."""
    parts: list[str] = []
    is_interrupted = True
    for x, y in points:
        if y is not None:
            parts.append(f"{'M' if is_interrupted else 'L'}{x:g} {y:g}")
        is_interrupted = y is None
    return "".join(parts)


def time_ticks(first: float, last: float) -> list[tuple[float, str]]:
    """Round local times between two others, about five of them, with their labels."""
    span = last - first
    width = next((one for one in _TIME_WIDTHS_S if one * _NUM_TICKS >= span), _TIME_WIDTHS_S[-1])
    offset = datetime.fromtimestamp(first).astimezone().utcoffset()
    offset_s = offset.total_seconds() if offset is not None else 0.0
    at = math.ceil((first + offset_s) / width) * width - offset_s
    form = "%H:%M" if width < _DAY_S else "%m-%d"
    ticks = []
    while at <= last:
        ticks.append((at, datetime.fromtimestamp(at).strftime(form)))
        at += width
    return ticks


def _unit(panel: str, high: float) -> float:
    """The unit in which a panel's numbers are round: bytes are read as KiB, MiB ..."""
    is_bytes = panel.endswith(("_bytes", "_bytes_per_s")) and high > 1
    return float(1024 ** int(math.log2(high) // 10)) if is_bytes else 1.0


def linear_ticks(low: float, high: float) -> list[float]:
    """Round numbers between two others, about five of them."""
    span = high - low
    if not 0 < span < math.inf:
        return [low]
    rough = span / _NUM_TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    width = next((one * power for one in (1, 2, 5) if one * power >= rough), 10 * power)
    number = math.ceil(low / width)
    ticks: list[float] = []
    while number * width <= high + 1e-9 * span and len(ticks) < 4 * _NUM_TICKS:
        ticks.append(float(f"{number * width:.12g}"))
        number += 1
    return ticks


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten between two logarithms, thinned where there are many."""
    powers = range(math.ceil(low), math.floor(high) + 1)
    return [10.0**power for power in powers[:: len(powers) // (2 * _NUM_TICKS) + 1]]


def value_text(panel: str, value: float | None) -> str:
    """A value of a panel as people read it."""
    if value is None:
        return "-"
    if panel.endswith("_bytes"):
        return bytes_text(value)
    if panel.endswith("_bytes_per_s"):
        return f"{bytes_text(value)}/s"
    if (is_ratio(panel) or panel == "utilization") and 0 <= value <= 1:
        return percent_text(value)
    return count_text(int(value)) if value >= 1e4 and value == int(value) else f"{value:.4g}"
