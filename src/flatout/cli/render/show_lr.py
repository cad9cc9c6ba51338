"""Output of `flatout lr`: some of the rates with their losses, and the suggestion."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from flatout.cli.render import show, wording
from flatout.runs import api as runs_api
from flatout.runs.lr_range import KeptLrRange
from flatout.schema.lr_range import LrPoint, LrRange
from flatout.schema.units import counted_text

_NUM_ROWS = 12
_WIDTH = 14


def print_lr_range(kept: KeptLrRange) -> None:
    """The result, and where it is."""
    result = kept.result
    for finding in result.warnings:
        show.print_finding(finding)
    console = show.make_console()
    show.print_lines(console, list(_head(result)))
    console.print()
    names = ("learning rate", "loss", "smoothed")
    console.print(Text("".join(f"{name:>{_WIDTH}}" for name in names), "dim"), soft_wrap=True)
    for point in shown_points(result):
        is_chosen = point.lr == result.lr
        row = f"{point.lr:>{_WIDTH}.2e}{point.loss:>{_WIDTH}.4g}{point.smoothed:>{_WIDTH}.4g}"
        text = row + ("  suggested" if is_chosen else "")
        console.print(Text(text, "green" if is_chosen else ""), soft_wrap=True)
    console.print()
    show.print_lines(console, list(_ending(kept)))
    if kept.command is not None:
        show.print_command(console, "next", kept.command)


def shown_points(result: LrRange) -> list[LrPoint]:
    """A dozen points equally far apart, and the one that is suggested."""
    points = result.points
    last = max(1, len(points) - 1)
    places = {round(row * last / (_NUM_ROWS - 1)) for row in range(_NUM_ROWS)}
    return [point for place, point in enumerate(points) if place in places or point.lr == result.lr]


def _head(result: LrRange) -> Iterator[tuple[str, str]]:
    yield "test", wording.DOT.join([result.name, result.device])
    sweep, made = result.sweep, len(result.points)
    rates = f"{sweep.from_lr:.2g} to {sweep.to_lr:.2g} in {counted_text(sweep.num_steps, 'step')}"
    ended = f"ended at {result.diverged_at:.2g}, where the loss diverged, after {made}"
    yield "rates", rates if result.diverged_at is None else f"{rates}; {ended}"


def _ending(kept: KeptLrRange) -> Iterator[tuple[str, str]]:
    result = kept.result
    if result.lr is not None:
        yield "suggested", f"{result.lr:.2g}, where the loss falls fastest"
    else:
        yield "suggested", f"none: {result.reason}"
    if result.own_lr:
        yield "now", f"{result.own_lr:.2g} in the experiment"
    if len(set(result.group_ratios)) > 1:
        ratios = ", ".join(f"{ratio:.2g}" for ratio in result.group_ratios)
        yield "groups", f"kept at {ratios} of it"
    yield "result", wording.home_text(kept.file)
    if kept.plot is not None:
        yield "picture", wording.home_text(kept.plot)
    elif not runs_api.can_draw():
        yield "picture", "none: pip install 'flatout[plots]'"
