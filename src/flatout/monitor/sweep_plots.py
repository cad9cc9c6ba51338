"""A sweep as pictures: which parameters matter, and which values are good."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flatout.monitor.figures import BLUE, GREY, ORANGE
from flatout.monitor.plots import drawing, png, replace_all
from flatout.schema.experiment_spec import Value
from flatout.schema.suggested_command import command_line, typed_value
from flatout.schema.sweep import Choices, Range, Sweep, SweepTrial
from flatout.schema.units import counted_text, percent_text

# More lines than these are a surface.
_MOST_LINES = 400
_MOST_LABELS = 12


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
    done = [one for one in sweep.ranking if one.status == "finished" and one.value is not None]
    if sweep.importances:
        yield "importances.png", png(_importances(sweep, figure, len(done)))
    if len(done) > 1:
        yield "parallel.png", png(_parallel(sweep, figure, done[:_MOST_LINES]))


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
    space = sweep.header.space
    columns = [
        _column([one.parameters[name] for one in trials], ends) for name, ends in space.items()
    ]
    columns.append(_column([one.value for one in trials], None))
    picture = figure(figsize=(max(6.0, 1.9 * len(columns)), 4.2), layout="constrained")
    picture.suptitle(sweep.id, x=0.01, ha="left", weight="bold")
    axis = picture.subplots()
    axis.set_title(f"{counted_text(len(trials), 'trial')}, the best in orange")
    for rank in reversed(range(len(trials))):
        heights = [column[0][rank] for column in columns]
        if trials[rank].trial == sweep.best:
            style = {"color": ORANGE, "linewidth": 2.6}
        else:
            style = {"color": BLUE, "linewidth": 1.1, "alpha": 0.9 - 0.75 * rank / len(trials)}
        axis.plot(range(len(columns)), heights, **style)
    for place, (_, marks) in enumerate(columns):
        axis.axvline(place, color=GREY, linewidth=0.8)
        for height, text in marks:
            axis.annotate(text, (place + 0.03, height), va="center", size="small")
    axis.set_xticks(range(len(columns)), [*space, sweep.header.metric or "metric"])
    axis.set_yticks([])
    axis.set(xlim=(-0.2, len(columns) - 0.4), ylim=(-0.06, 1.06))
    axis.grid(visible=False)
    axis.spines["left"].set_visible(False)
    return picture


def _column(
    values: list[Value], ends: Range | Choices | None
) -> tuple[list[float], list[tuple[float, str]]]:
    """Where each value is on its axis, from 0 to 1, and the marks of the axis."""
    if isinstance(ends, Choices):
        texts = [typed_value(value) for value in ends.values]
        places = {text: row / max(1, len(texts) - 1) for row, text in enumerate(texts)}
        marks = [(place, text) for text, place in places.items()]
        return [places[typed_value(value)] for value in values], marks[:_MOST_LABELS]
    numbers = [float(value or 0) for value in values]
    low, high = (ends.low, ends.high) if ends is not None else (min(numbers), max(numbers))
    scaled = math.log if ends is not None and ends.is_log else float
    width = (scaled(high) - scaled(low)) or 1.0
    return [(scaled(one) - scaled(low)) / width for one in numbers], [
        (0.0, f"{low:.4g}"), (1.0, f"{high:.4g}"),
    ]  # fmt: skip
