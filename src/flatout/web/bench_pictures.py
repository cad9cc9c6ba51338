"""Charts of the bench report for the pages: the same drawings, marked as safe HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import jinja2
from markupsafe import Markup

from flatout.bench import charts
from flatout.bench.table_texts import doubt_text, part_text, ratio_text, value_text
from flatout.schema.bench_comparison import ComparedRow, ComparisonVerdict, LoadedBench
from flatout.schema.tuning import Interval


def add_pictures(environment: jinja2.Environment) -> None:
    """Makes them known to the templates."""
    environment.filters |= {"ratio": ratio_text}
    environment.globals |= {
        "rooflines": rooflines, "ratio_bar": ratio_bar, "ratio_axis": ratio_axis,
        "ratio_scale": ratio_scale, "verdict_class": charts.verdict_class,
        "compared_value": value_text, "doubts": doubt_text, "step_part": part_text,
        "compared_ratios": compared_ratios,
    }  # fmt: skip


def rooflines(files: Sequence[LoadedBench]) -> list[tuple[str, Markup]]:
    """The rooflines of all files that have one, by name, on the same axes."""
    scale = charts.roofline_scale([one.file for one in files])
    if scale is None:
        return []
    drawn = [(one.name, charts.roofline(one.file, scale)) for one in files]
    # Its texts are escaped where it is drawn.
    return [(name, Markup(svg)) for name, svg in drawn if svg]


def ratio_scale(ratios: Iterable[Interval]) -> float:
    """The scale that bars of these ratios share."""
    return charts.ratio_scale(list(ratios))


def ratio_bar(ratio: Interval, verdict: ComparisonVerdict, scale: float) -> Markup:
    """A ratio with its interval; the number is next to it."""
    return Markup(charts.ratio_bar(ratio, verdict, scale))


def ratio_axis(scale: float) -> Markup:
    """The numbers below such bars."""
    return Markup(charts.ratio_axis(scale))


def compared_ratios(rows: Iterable[ComparedRow], place: int) -> list[Interval]:
    """The ratios of a file."""
    values = [row.values[place] for row in rows]
    return [one.change.ratio for one in values if one is not None and one.change is not None]
