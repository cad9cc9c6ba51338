"""Pictures of a sweep as SVG; text keeps its size on a phone, where the picture is scrolled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

import jinja2
from markupsafe import Markup

from flatout.monitor.sweep_plots import ParallelAxis
from flatout.schema.experiment_spec import Value
from flatout.schema.suggested_command import typed_value
from flatout.web.charts import value_text

# In pixels; the least width of an axis with its labels.
_AXIS_WIDTH, _TOP, _HEIGHT, _BOTTOM = 110, 34, 240, 14
_LEFT_PERCENT = 1.0
_MOST_LETTERS = 15


def add_sweep_pictures(environment: jinja2.Environment) -> None:
    """Makes them known to the templates."""
    environment.filters |= {"setting": setting_text}
    environment.globals |= {"parallel_picture": parallel_picture, "share_bar": share_bar}


def setting_text(value: Value) -> str:
    """A parameter in a table, with four figures; the command and the document have all."""
    return f"{value:.4g}" if isinstance(value, float) else typed_value(value)


def share_bar(share: float) -> Markup:
    """A bar from 0 to 1; the number is next to it."""
    rect = f'<rect class="share" x="0" width="{100 * share:.2f}%" y="5" height="12"/>'
    return Markup(f'<svg class="bar" aria-hidden="true">{rect}</svg>')


def parallel_picture(parallel: dict[str, Any], label: str) -> Markup:
    """Parallel coordinates: a line for each trial through its parameters to the metric.

    Args:
        parallel: axes, and lines of which the first is the best; it is drawn over the others.
        label: what the picture is.
    """
    axes, lines = parallel["axes"], parallel["lines"]
    curves = [_curve(axes, lines, rank) for rank in reversed(range(len(lines)))]
    # Curves are stretched to the width; text, outside of their own coordinates, is not.
    return Markup(
        f'<svg class="parallel" role="img" aria-label="{escape(label)}"'
        f' width="{_AXIS_WIDTH * len(axes)}" height="{_TOP + _HEIGHT + _BOTTOM}">'
        f'<svg class="lines" x="{_LEFT_PERCENT}%" y="{_TOP}" width="{100 - _LEFT_PERCENT}%"'
        f' height="{_HEIGHT}" viewBox="0 0 {100 * len(axes)} 100" preserveAspectRatio="none">'
        f"{''.join(curves)}</svg>{''.join(_axes(axes))}</svg>"
    )


def _curve(axes: Sequence[ParallelAxis], lines: Sequence[dict[str, Any]], rank: int) -> str:
    """The line of a trial, the better the more opaque."""
    points = "L".join(
        f"{100 * place} {100 * (1 - axis.heights[rank]):.2f}" for place, axis in enumerate(axes)
    )
    kind = "curve color-1 best" if rank == 0 else "curve color-0"
    opacity = 1.0 if rank == 0 else 0.9 - 0.75 * rank / len(lines)
    line = lines[rank]
    title = f"{line['run']}: {axes[-1].name} {value_text(axes[-1].name, line['value'])}"
    return (
        f"<g><title>{escape(title)}</title>"
        f'<path class="{kind}" stroke-opacity="{opacity:.2f}" d="M{points}"/></g>'
    )


def _axes(axes: Sequence[ParallelAxis]) -> Iterator[str]:
    for place, axis in enumerate(axes):
        x = _LEFT_PERCENT + (100 - _LEFT_PERCENT) * place / len(axes)
        yield f'<line class="grid" x1="{x:.2f}%" x2="{x:.2f}%" y1="{_TOP}" y2="{_TOP + _HEIGHT}"/>'
        yield _text(axis.name, x, 14, "axis-name")
        for height, mark in axis.marks:
            yield _text(mark, x, _TOP + _HEIGHT * (1 - height) + 4, "tick")


def _text(text: str, x: float, y: float, kind: str) -> str:
    """A text to the right of an axis; a long one is cut, and shown whole under the pointer."""
    short = text if len(text) <= _MOST_LETTERS else f"{text[: _MOST_LETTERS - 1]}…"
    title = "" if short == text else f"<title>{escape(text)}</title>"
    return f'<text class="{kind}" x="{x:.2f}%" dx="5" y="{y:.1f}">{title}{escape(short)}</text>'
