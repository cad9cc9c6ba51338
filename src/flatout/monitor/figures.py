"""The plots of a run: each from numbers to a matplotlib figure.

Colors are those of Okabe and Ito, which people who see fewer colors can tell apart; shapes differ
too. Source: https://jfly.uni-koeln.de/color/
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from flatout.schema.class_report import ClassReport, ClassScores
from flatout.schema.lr_range import LrRange
from flatout.schema.run_lines import Classified, EpochEnded, Logged, Metric, Progress, Validated
from flatout.schema.units import is_ratio

# (step, value)
Points = list[tuple[int, float]]

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#777777"
STYLE: dict[str, Any] = {
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.axisbelow": True,
    "axes.titlesize": "medium", "axes.titlelocation": "left", "grid.color": "#e4e4e4",
    "legend.frameon": False, "lines.linewidth": 1.6, "font.size": 9.5,
    # A class may be called "$5": that is not a formula.
    "text.parse_math": False,
}  # fmt: skip
# In a picture of more, a class would be a line of a pixel or two.
MOST_CLASSES = 400
_MOST_PANELS = 6
_MARKED_POINTS = 40
_LABELLED_CLASSES = 40
_NUMBERED_CLASSES = 15
_WORST_CLASSES = 30
_LABEL_LETTERS = 22
# From this ratio of the largest to the smallest loss on, a linear axis shows a flat line.
_LOG_RATIO = 30.0


class Curves:
    """Values that changed step by step. panels: title -> name of a line -> its points.

    Args:
        lines: a run's metrics.
    """

    def __init__(self, lines: Iterable[Metric]) -> None:
        self.panels: dict[str, dict[str, Points]] = {}
        self.rates: Points = []
        for line in lines:
            if isinstance(line, Progress):
                self._add("loss", "training", line.step, line.loss)
                self.rates.append((line.step, line.learning_rate))
            elif isinstance(line, EpochEnded):
                self._add("loss", "training, epoch mean", line.step, line.loss)
                if line.learning_rate is not None:
                    self.rates.append((line.step, line.learning_rate))
            elif isinstance(line, Validated):
                for name, value in line.metrics.items():
                    is_loss = name == "loss"
                    title = "loss" if is_loss else name.replace("_", " ")
                    self._add(title, "validation" if is_loss else name, line.step, value)
            elif isinstance(line, Logged):
                self._add(line.name, line.name, line.step, line.value)

    def _add(self, title: str, name: str, step: int, value: float | None) -> None:
        if value is not None:
            self.panels.setdefault(title, {}).setdefault(name, []).append((step, value))

    @property
    def has_changing_rate(self) -> bool:
        """Whether a picture of the learning rate says anything."""
        return len({rate for _, rate in self.rates}) > 1


def draw_curves(figure: Any, curves: Curves, title: str, best: Validated | None) -> Any:
    """Losses and metrics over the steps, one below the other, with the best validation."""
    panels = list(curves.panels.items())[:_MOST_PANELS]
    picture = figure(figsize=(8, 1.2 + 2.3 * len(panels)), layout="constrained")
    picture.suptitle(title, x=0.01, ha="left", weight="bold")
    axes = picture.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for axis, (name, lines) in zip(axes, panels, strict=True):
        _draw_panel(axis, name, lines)
        if best is not None:
            axis.axvline(best.step, color=GREY, linestyle=":", linewidth=1.2, label="best")
        if len(lines) > 1 or best is not None:
            axis.legend(loc="best", fontsize="small")
    _label_steps(axes[-1])
    return picture


def _draw_panel(axis: Any, title: str, lines: dict[str, Points]) -> None:
    # The single steps of training are pale: they are noise around what the others show.
    pale = {"color": BLUE, "alpha": 0.35, "linewidth": 1.0}
    styles: dict[str, dict[str, Any]] = {
        "training": pale if len(lines) > 1 else {"color": BLUE},
        "training, epoch mean": {"color": BLUE, "marker": "o"},
        "validation": {"color": ORANGE, "marker": "s"},
    }
    axis.set_title(title)
    name_of_ratio = ""
    for name, points in lines.items():
        style = {"color": GREEN, "marker": "D"} | styles.get(name, {})
        if name == "training" or len(points) > _MARKED_POINTS:
            style.pop("marker", None)
        label = name if title in ("loss", name) else "validation"
        axis.plot(*zip(*points, strict=True), label=label, markersize=4, **style)
        name_of_ratio = name
    values = [value for points in lines.values() for _, value in points]
    if is_ratio(name_of_ratio) and all(0 <= value <= 1 for value in values):
        _label_percent(axis.yaxis)
    elif title == "loss" and min(values) > 0 and max(values) / min(values) > _LOG_RATIO:
        axis.set_yscale("log")
        axis.set_title("loss (logarithmic)")
        axis.yaxis.set_major_formatter(_plain_number)


def draw_learning_rate(figure: Any, curves: Curves, title: str) -> Any:
    """The learning rate over the steps."""
    picture = figure(figsize=(8, 3), layout="constrained")
    picture.suptitle(title, x=0.01, ha="left", weight="bold")
    axis = picture.subplots()
    axis.set_title("learning rate")
    axis.plot(*zip(*curves.rates, strict=True), color=BLUE)
    axis.set_ylim(bottom=0)
    axis.yaxis.set_major_formatter(_plain_number)
    _label_steps(axis)
    return picture


def draw_lr_range(figure: Any, result: LrRange) -> Any:
    """The loss of each step of a learning-rate range test over its rate, and the suggestion."""
    picture = figure(figsize=(8, 4), layout="constrained")
    picture.suptitle(result.name, x=0.01, ha="left", weight="bold")
    axis = picture.subplots()
    axis.set_title("loss over the learning rate")
    lrs = [point.lr for point in result.points]
    losses = [point.loss for point in result.points]
    axis.plot(lrs, losses, color=BLUE, alpha=0.35, linewidth=1.0, label="each step")
    smoothed = [point.smoothed for point in result.points]
    axis.plot(lrs, smoothed, color=BLUE, label="smoothed")
    if result.lr is not None:
        label = f"suggested: {result.lr:.2g}"
        axis.axvline(result.lr, color=ORANGE, linestyle="--", linewidth=1.2, label=label)
    axis.set_xscale("log")
    axis.set_xlabel("learning rate")
    # matplotlib's own labels are formulas.
    axis.xaxis.set_major_formatter(_plain_number)
    axis.xaxis.set_minor_formatter(lambda value, _: "")
    # What diverges would flatten all that is of interest.
    low, high = min(smoothed), max(smoothed[: max(1, smoothed.index(min(smoothed)))])
    margin = 0.15 * (high - low) or 0.1
    axis.set_ylim(low - margin, high + 2 * margin)
    axis.legend(loc="best", fontsize="small")
    return picture


def draw_confusion(figure: Any, line: Classified, title: str) -> Any:
    """Draws the classification of each class (a row): shares as colors, counts as numbers."""
    num_classes = len(line.labels)
    whole = [0] * num_classes
    for true, _, count in line.counts:
        whole[true] += count
    shares = [[0.0 if total else float("nan")] * num_classes for total in whole]
    for true, predicted, count in line.counts:
        shares[true][predicted] = count / whole[true]
    inches = 10.5 if num_classes > _LABELLED_CLASSES else max(4.5, 1.5 + 0.42 * num_classes)
    picture = figure(figsize=(inches + 1.2, inches), layout="constrained")
    picture.suptitle(title, x=0.01, ha="left", weight="bold")
    axis = picture.subplots()
    axis.grid(visible=False)
    axis.set_title(f"{line.name} at step {line.step:,}")
    # Many classes have few mistakes each; the root makes them visible.
    is_root = num_classes > _NUMBERED_CLASSES
    colours = [[value**0.5 for value in row] for row in shares] if is_root else shares
    image = axis.imshow(colours, cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
    bar = picture.colorbar(image, ax=axis, shrink=0.8, label="share of the true class")
    bar.outline.set_visible(False)
    _label_percent(bar.ax.yaxis, (lambda value: value**2) if is_root else (lambda value: value))
    axis.set(xlabel="predicted class", ylabel="true class")
    if num_classes <= _LABELLED_CLASSES:
        labels = [_short(label) for label in line.labels]
        is_long = max(map(len, labels)) > 2
        axis.set_xticks(range(num_classes), labels, rotation=90 if is_long else 0)
        axis.set_yticks(range(num_classes), labels)
        axis.tick_params(length=0)
    if num_classes <= _NUMBERED_CLASSES:
        for true, predicted, count in line.counts:
            colour = "white" if shares[true][predicted] > 0.5 else "black"
            text = f"{count:,}"
            axis.text(predicted, true, text, ha="center", va="center", color=colour, size="small")
    return picture


def draw_classes(figure: Any, report: ClassReport, title: str) -> Any:
    """Precision, recall and F1 of each class, or of the worst of many."""
    present = [scores for scores in report.classes if scores.num_samples]
    is_all = len(present) <= _LABELLED_CLASSES
    shown = present if is_all else report.worst[:_WORST_CLASSES]
    what = "" if is_all else f", the worst {len(shown)} of {len(present):,}"
    picture = figure(figsize=(8, 1.6 + 0.24 * len(shown)), layout="constrained")
    picture.suptitle(title, x=0.01, ha="left", weight="bold")
    axis = picture.subplots()
    axis.set_title(f"{report.name} at step {report.step:,}: classes with samples{what}")
    values: tuple[tuple[str, str, str, Callable[[ClassScores], float | None]], ...] = (
        ("precision", "o", BLUE, lambda scores: scores.precision),
        ("recall", "s", ORANGE, lambda scores: scores.recall),
        ("F1", "|", "black", lambda scores: scores.f1),
    )
    for name, marker, colour, value in values:
        rows = [row for row, scores in enumerate(shown) if value(scores) is not None]
        shares = [value(shown[row]) for row in rows]
        size = {"markersize": 11, "markeredgewidth": 2} if marker == "|" else {"markersize": 5.5}
        axis.plot(shares, rows, marker, color=colour, label=name, **size)
    labels = [f"{_short(scores.label)} ({scores.num_samples:,})" for scores in shown]
    axis.set_yticks(range(len(shown)), labels)
    axis.set(ylim=(len(shown) - 0.5, -0.5), ylabel="class (samples)")
    lowest = min(value(scores) or 0.0 for scores in shown for _, _, _, value in values)
    margin = 0.03 * (1.0 - lowest) + 0.002
    axis.set_xlim(lowest - margin, 1.0 + margin)
    _label_percent(axis.xaxis)
    picture.legend(loc="outside lower center", ncols=3, fontsize="small")
    return picture


def _label_percent(axis: Any, share: Callable[[float], float] = lambda value: value) -> None:
    axis.set_major_formatter(lambda value, _: f"{100 * share(value):.4g} %")


def _plain_number(value: float, _: Any) -> str:
    return f"{value:.4g}"


def _label_steps(axis: Any) -> None:
    axis.set_xlabel("step")
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value % 1 == 0 else "")


def _short(label: str) -> str:
    plain = "".join(letter if letter.isprintable() else "\ufffd" for letter in label)
    return plain if len(plain) <= _LABEL_LETTERS else plain[: _LABEL_LETTERS - 1] + "\u2026"
