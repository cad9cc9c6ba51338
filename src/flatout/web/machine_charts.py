"""The history of the machine as charts over time."""

from __future__ import annotations

import msgspec

from flatout.schema.finding import Finding, finding_from
from flatout.schema.metric_curves import MetricCurve, MetricCurves
from flatout.system.clock import now_s
from flatout.system.store.sample_index import machine_curves
from flatout.web.background_query import BackgroundQuery
from flatout.web.charts import NUM_COLORS, ChartData, ChartLine
from flatout.web.page import PageRequest

_PANELS = ("utilization", "gpu_memory_bytes", "gpu_power_w", "gpu_temperature_c",
           "host_memory_bytes", "disk_bytes_per_s")  # fmt: skip
_DEFAULT_H = 6
_MOST_H = 24 * 60
# A day then needs no more than the finest level of its index.
_MOST_COLUMNS = 120
_LAST_S = 2**53
# Where nothing was sampled for so long, a curve is interrupted.
_GAP_COLUMNS = 3
_LEAST_GAP_S = 60


class TimeView(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the history that a page shows. first_s, last_s: seconds since the epoch."""

    hours: int
    first_s: int
    last_s: int


def time_view(request: PageRequest) -> TimeView:
    """The last hours, as the query asks for them, or the part of them that a chart is zoomed to."""
    hours = request.number("hours", 1, _MOST_H) or _DEFAULT_H
    now = int(now_s())
    first = request.number("from", 0, _LAST_S)
    last = request.number("to", 0, _LAST_S)
    return TimeView(
        hours=hours,
        first_s=now - 3600 * hours if first is None else first,
        last_s=now if last is None else last,
    )


class MachineCharts(msgspec.Struct, frozen=True, kw_only=True):
    """The charts of a time. problems: why they are incomplete.

    share_read: of the samples; below 1, the others are being added to the index.
    """

    charts: tuple[ChartData, ...] = ()
    problems: tuple[Finding, ...] = ()
    share_read: float = 1.0


def machine_charts(
    indexing: BackgroundQuery[None], view: TimeView, panel: str | None = None
) -> MachineCharts:
    """The charts of that time, from what is in the index; more of it is made meanwhile."""
    curves, errors = machine_curves(
        view.first_s, view.last_s, columns=_MOST_COLUMNS, panel=panel
    )  # fmt: skip
    # Only now: it would slow down the reading.
    failed = indexing.latest().problem
    found = [*map(finding_from, errors), *([failed] if failed is not None else [])]
    # A cause that concerns all days is named once.
    problems = {finding.rule: finding for finding in found}
    least_gap_s = max(_LEAST_GAP_S, _GAP_COLUMNS * (view.last_s - view.first_s) // _MOST_COLUMNS)
    charts = [_chart(name, curves, least_gap_s) for name in _PANELS]
    return MachineCharts(
        charts=tuple(chart for chart in charts if chart.lines),
        problems=tuple(problems.values()),
        share_read=curves.share_read,
    )


def _chart(panel: str, curves: MetricCurves, least_gap_s: int) -> ChartData:
    found = [curve for curve in curves.curves if curve.panel == panel and curve.steps]
    lines = [_line(curve, number, least_gap_s) for number, curve in enumerate(found)]
    return ChartData(panel=panel, lines=tuple(lines), is_log=False, is_time=True)


def _line(curve: MetricCurve, number: int, least_gap_s: int) -> ChartLine:
    steps: list[int] = []
    values: list[float | None] = []
    for step, value in zip(curve.steps, curve.values, strict=True):
        if steps and step - steps[-1] > least_gap_s:
            steps.append(steps[-1] + 1)
            values.append(None)
        steps.append(step)
        values.append(value)
    return ChartLine(
        run="", line=curve.line, color=number % NUM_COLORS, dash=number // NUM_COLORS % 4,
        steps=steps, values=values,
    )  # fmt: skip
