"""A sweep as pictures: which parameters matter, and which values are good."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flatout.monitor.figures import BLUE, GREY, ORANGE
from flatout.monitor.plots import drawing, png, replace_all
from flatout.schema.suggested_command import command_line, typed_value
from flatout.schema.sweep import Choices, Sweep, SweepTrial
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
    """A line for each trial through its parameters to the metric, the best in front."""
    header = sweep.header
    columns = [_Column(sweep, name) for name in header.space]
    columns.append(_Column(sweep, None, [one.value or 0.0 for one in trials]))
    picture = figure(figsize=(max(6.0, 1.9 * len(columns)), 4.2), layout="constrained")
    picture.suptitle(sweep.id, x=0.01, ha="left", weight="bold")
    axis = picture.subplots()
    axis.set_title(f"trials that have finished: {len(trials)}; the best in orange")
    places = range(len(columns))
    for rank, one in reversed(list(enumerate(trials))):
        heights = [column.height(one) for column in columns]
        is_best = one.trial == sweep.best
        # The better a trial, the darker its line.
        strength = 0.9 - 0.75 * rank / len(trials)
        axis.plot(
            places, heights, color=ORANGE if is_best else BLUE, alpha=1.0 if is_best else strength,
            linewidth=2.6 if is_best else 1.1, zorder=3 if is_best else 2,
        )  # fmt: skip
    for place, column in enumerate(columns):
        axis.axvline(place, color=GREY, linewidth=0.8, zorder=1)
        for height, text in column.labels():
            axis.annotate(
                text, (place, height), xytext=(3, 0), textcoords="offset points",
                va="center", size="small", zorder=4,
                bbox={"boxstyle": "square,pad=0.1", "facecolor": "white", "alpha": 0.7,
                      "edgecolor": "none"},
            )  # fmt: skip
    axis.set_xticks(places, [*header.space, header.metric or "metric"])
    axis.set_yticks([])
    axis.set(xlim=(-0.2, len(columns) - 0.4), ylim=(-0.06, 1.06))
    axis.grid(visible=False)
    axis.spines["left"].set_visible(False)
    return picture


class _Column:
    """An axis of the parallel coordinates: of a parameter, or (name None) of the metric."""

    def __init__(self, sweep: Sweep, name: str | None, values: list[float] | None = None) -> None:
        self._name = name
        self._choices: list[str] = []
        self._is_log = False
        values = values or []
        if name is None:
            self._low, self._high = min(values), max(values)
            return
        one = sweep.header.space[name]
        if isinstance(one, Choices):
            self._choices = [typed_value(value) for value in one.values]
            self._low, self._high = 0.0, float(len(self._choices) - 1)
        else:
            self._low, self._high, self._is_log = float(one.low), float(one.high), one.is_log

    def height(self, trial: SweepTrial) -> float:
        """Where a trial crosses it, from 0 to 1."""
        if self._name is None:
            return self._scaled(trial.value or 0.0)
        value = trial.parameters[self._name]
        if self._choices:
            return self._scaled(float(self._choices.index(typed_value(value))))
        assert isinstance(value, int | float)
        return self._scaled(float(value))

    def labels(self) -> list[tuple[float, str]]:
        """Its marks: height and text."""
        if self._choices:
            marks = list(enumerate(self._choices))[:_MOST_LABELS]
            return [(self._scaled(float(number)), text) for number, text in marks]
        if self._is_log:
            middle = (self._low * self._high) ** 0.5
        else:
            middle = (self._low + self._high) / 2
        marks_at = dict.fromkeys((self._low, middle, self._high))
        return [(self._scaled(value), f"{value:.4g}") for value in marks_at]

    def _scaled(self, value: float) -> float:
        low, high = self._low, self._high
        if self._is_log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return 0.5 if high == low else (value - low) / (high - low)
