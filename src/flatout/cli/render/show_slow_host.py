"""Output of `flatout bench slow-host`."""

from __future__ import annotations

from statistics import median

from rich.table import Table

from flatout.cli.render import show, wording
from flatout.cli.render.show_bench import interval_text
from flatout.cli.render.tables import plain_table
from flatout.schema.slow_host import Level, SlowHostReport, SlowResponse
from flatout.schema.units import counted_text, noun_text, percent_text, seconds_text

_LABELS = {
    "none": "as it is", "operators": "each launch", "loader": "each batch", "host": "host may run",
}  # fmt: skip


def print_slow_host(report: SlowHostReport) -> None:
    """The step at all delays, the slopes, and what they mean."""
    console = show.make_console()
    threads = f"{report.num_threads} {noun_text(report.num_threads, 'thread')}"
    device = [report.device, report.name, threads, f"torch {report.torch}"]
    launches = counted_text(report.operators.num_per_step, "launch", "launches")
    step = [interval_text(report.step_s, "s"), launches]
    show.print_lines(console, [
        ("workload", wording.DOT.join([report.workload, report.size, report.data])),
        ("device", wording.DOT.join(part for part in device if part)),
        ("step", wording.DOT.join([seconds_text(report.step_s.middle), *step])),
    ])  # fmt: skip
    console.print()
    console.print(_table(report))
    console.print()
    lines = [("launches", _slope(report.operators)), ("loader", _slope(report.loader))]
    lines += [("meaning", text) for text in report.words]
    if report.device == "cpu":
        lines.append(("times", "of the training's thread, without what other programs took; those"
                      " of the host's share and of the step above are by the clock"))  # fmt: skip
    lines += [("warning", text) for text in report.warnings]
    show.print_lines(console, lines)


def _table(report: SlowHostReport) -> Table:
    table = plain_table("slower", "by", "step", "")
    rest_s = next(median(level.samples) for level in report.levels if level.what == "none")
    quotas = {quota.share: quota.ratio.middle for quota in report.quotas}
    for level in report.levels:
        step_s = median(level.samples)
        ratio = quotas[level.amount] if level.what == "host" else step_s / rest_s
        shown = "" if level.what == "none" else f"x{ratio:.2f}"
        table.add_row(_LABELS[level.what], _amount(level), seconds_text(step_s), shown)
    return table


def _amount(level: Level) -> str:
    if level.what == "host":
        return f"{percent_text(level.amount, 0)} of the time"
    if level.amount:
        return seconds_text(level.amount)
    return "counted only" if level.what == "operators" else ""


def _slope(found: SlowResponse) -> str:
    noun = "launch" if found.what == "operators" else "batch"
    if found.slope is None or found.felt is None:
        return f"nothing is felt up to {seconds_text(found.hidden_s.high)} per {noun}"
    felt, slope = found.felt, found.slope
    return (
        f"{slope.middle:.3g} us a step [{slope.low:.3g}, {slope.high:.3g}] for each us per {noun},"
        f" {percent_text(felt.middle, 0)} [{100 * felt.low:.0f}, {100 * felt.high:.0f}] of what is"
        " added"
    )
