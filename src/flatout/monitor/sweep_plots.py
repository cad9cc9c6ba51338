"""A sweep as pictures: which parameters matter, and which values are good."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from flatout.monitor.figures import BLUE, GREY, ORANGE
from flatout.monitor.plots import drawing, png, replace_all
from flatout.schema.experiment_spec import Value
from flatout.schema.suggested_command import command_line, typed_value
from flatout.schema.sweep import Choices, Range, Sweep, SweepTrial
from flatout.schema.units import counted_text, percent_text

# More lines than these are a surface.
MOST_LINES = 400
_MOST_LABELS = 12


class ParallelAxis(msgspec.Struct, frozen=True, kw_only=True):
    """An axis of parallel coordinates: a parameter, or the metric.

    heights: of each trial, from 0 to 1. marks: heights with their texts.
    """

    name: str
    heights: list[float]
    marks: list[tuple[float, str]]


def charted_trials(sweep: Sweep) -> list[SweepTrial]:
    """The trials that have finished, the best first."""
    return [one for one in sweep.ranking if one.status == "finished" and one.value is not None]


def parallel_axes(sweep: Sweep, trials: list[SweepTrial]) -> list[ParallelAxis]:
    """The axes of parallel coordinates for at least one trial, the metric last."""
    axes = [
        _axis(name, [one.parameters[name] for one in trials], ends)
        for name, ends in sweep.header.space.items()
    ]
    return [*axes, _axis(sweep.header.metric or "metric", [one.value for one in trials], None)]


def draw_sweep(sweep: Sweep) -> list[Path]:
    """Draws the pictures of a sweep into its folder, in place of those of an earlier call.

    Returns:
        The files; none where too few trials have ended.

    Raises:
        UsageError: matplotlib-not-installed.
        RunFailed: plots-not-drawn.
    """
    again = command_line(["flatout", "sweep", "show", sweep.id, "--plots"])
    fix = f"the sweep itself is unaffected; update matplotlib and try again: {again}"
    with drawing(f"the plots of {sweep.id}", fix) as figure:
        drawn = dict(_drawn(sweep, figure))
    return replace_all(Path(sweep.folder) / "plots", drawn)


def _drawn(sweep: Sweep, figure: Any) -> Iterator[tuple[str, bytes]]:
    done = charted_trials(sweep)
    if sweep.importances:
        yield "importances.png", png(_importances(sweep, figure, len(done)))
    if len(done) > 1:
        yield "parallel.png", png(_parallel(sweep, figure, done[:MOST_LINES]))


def _importances(sweep: Sweep, figure: Any, num_trials: int) -> Any:
    """Bars, the longest at the top."""
    pairs = sorted(sweep.importances.items(), key=lambda pair: pair[1])
    picture = figure(figsize=(8, 1.2 + 0.35 * len(pairs)), layout="constrained")
    picture.suptitle(sweep.id, x=0.01, ha="left", weight="bold")
    axis = picture.subplots()
    metric, num = sweep.header.metric, counted_text(num_trials, "trial")
    axis.set_title(f"importance of each parameter for {metric} ({num})")
    axis.barh([name for name, _ in pairs], [share for _, share in pairs], color=BLUE, height=0.6)
    for row, (_, share) in enumerate(pairs):
        axis.text(share, row, f" {percent_text(share, 0)}", va="center", size="small")
    axis.set_xlim(0, 1.12 * max(share for _, share in pairs) or 1.0)
    axis.xaxis.set_major_formatter(lambda value, _: percent_text(value, 0))
    axis.grid(axis="y", visible=False)
    return picture


def _parallel(sweep: Sweep, figure: Any, trials: list[SweepTrial]) -> Any:
    """A line for each trial through its parameters to the metric, the better the darker."""
    axes = parallel_axes(sweep, trials)
    picture = figure(figsize=(max(6.0, 1.9 * len(axes)), 4.2), layout="constrained")
    picture.suptitle(sweep.id, x=0.01, ha="left", weight="bold")
    axis = picture.subplots()
    axis.set_title(f"{counted_text(len(trials), 'trial')}, the best in orange")
    for rank in reversed(range(len(trials))):
        heights = [one.heights[rank] for one in axes]
        if trials[rank].trial == sweep.best:
            style = {"color": ORANGE, "linewidth": 2.6}
        else:
            style = {"color": BLUE, "linewidth": 1.1, "alpha": 0.9 - 0.75 * rank / len(trials)}
        axis.plot(range(len(axes)), heights, **style)
    for place, one in enumerate(axes):
        axis.axvline(place, color=GREY, linewidth=0.8)
        for height, text in one.marks:
            axis.annotate(text, (place + 0.03, height), va="center", size="small")
    axis.set_xticks(range(len(axes)), [one.name for one in axes])
    axis.set_yticks([])
    axis.set(xlim=(-0.2, len(axes) - 0.4), ylim=(-0.06, 1.06))
    axis.grid(visible=False)
    axis.spines["left"].set_visible(False)
    return picture


def _axis(name: str, values: list[Value], ends: Range | Choices | None) -> ParallelAxis:
    """Where each value is on its axis; without ends, it reaches from the lowest to the highest."""
    if isinstance(ends, Choices):
        texts = [typed_value(value) for value in ends.values]
        places = {text: row / max(1, len(texts) - 1) for row, text in enumerate(texts)}
        marks = [(place, text) for text, place in places.items()]
        heights = [places[typed_value(value)] for value in values]
        return ParallelAxis(name=name, heights=heights, marks=marks[:_MOST_LABELS])
    numbers = [float(value or 0) for value in values]
    low, high = (ends.low, ends.high) if ends is not None else (min(numbers), max(numbers))
    scaled = math.log if ends is not None and ends.is_log else float
    width = (scaled(high) - scaled(low)) or 1.0
    heights = [(scaled(one) - scaled(low)) / width for one in numbers]
    marks = [(0.0, f"{low:.4g}"), (1.0, f"{high:.4g}")]
    return ParallelAxis(name=name, heights=heights, marks=marks)
