"""Output of `flatout bench run --frameworks`."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

from rich.console import Console
from rich.text import Text

from flatout.bench.api import interval_of
from flatout.bench.framework_verdicts import Agreement, agreements
from flatout.bench.limits import is_busy
from flatout.bench.run_summary import RunSummary, speed_ratio, summaries
from flatout.bench.table_texts import ratio_text
from flatout.cli.render import show
from flatout.cli.render.show_bench import doubts, interval_text
from flatout.cli.render.tables import plain_table
from flatout.cli.render.wording import DOT, machine_text, near_text
from flatout.schema.bench import BenchFile, BenchRow
from flatout.schema.units import counted_text, percent_text, quantity_text


def print_frameworks(file: BenchFile, *, out: str | None, html: str | None) -> None:
    """A table for each workload, a line per way to train; then recipes, doubts and files."""
    console = show.make_console()
    counted = counted_text(file.num_processes, "process", "processes")
    how = f"{file.settings.get('effort', '')}, {counted} of each way, in turns"
    show.print_lines(console, [("machine", machine_text(file.machine)), ("measured", how)])
    agreed = agreements(file.rows)
    for summary in summaries(file):
        console.print()
        _print_workload(console, file, summary, agreed)
    console.print()
    show.print_lines(console, list(_closing_lines(file)))
    for name, path in (("file", out), ("report", html)):
        if path is not None:
            show.print_lines(console, [(name, near_text(path))])


def _print_workload(
    console: Console, file: BenchFile, summary: RunSummary, agreed: list[Agreement]
) -> None:
    conditions = summary.first.conditions
    threads = f"{summary.device}, {counted_text(int(conditions.get('threads', '1')), 'thread')}"
    title = [summary.workload, conditions.get("size", ""), f"batch {conditions.get('batch_size')}"]
    text = DOT.join([*title, conditions.get("dtype", ""), threads])
    console.print(Text(text, "bold"), soft_wrap=True)
    measured = {way: rows for way, rows in summary.rows.items() if summary.speed(way)}
    steps = next(
        (row.conditions["steps"] for rows in measured.values() for row in rows.values()
         if "steps" in row.conditions), ""
    )  # fmt: skip
    first = next(iter(measured), None)
    later = f"{counted_text(int(steps), 'step')} after" if steps.isdecimal() else "first after"
    table = plain_table("", "speed", f"of {first}", later, "memory", "then", "same result")
    own = {one.way: one for one in agreed if one.workload == summary.workload}
    for way, rows in measured.items():
        speed = summary.speed(way)
        assert speed is not None
        ratio = speed_ratio(summary.speed(first) if first else None, speed, file)
        table.add_row(
            f"  {way}",
            _value(speed, file),
            ratio_text(ratio) if ratio and way != first else "",
            _value(rows.get("time_to_steps"), file, is_short=True),
            _value(rows.get("peak_memory"), file, is_short=True),
            _result(rows),
            _agreement(own.get(way)),
        )
    if table.row_count:
        console.print(table)
    show.print_lines(console, list(_notes(summary)))


def _value(row: BenchRow | None, file: BenchFile, *, is_short: bool = False) -> str:
    if row is None or not row.samples:
        return "n/a"
    interval = interval_of(row, is_busy=is_busy(file), num_processes=file.num_processes)
    if interval is None:
        return quantity_text(row.samples[0], row.unit)
    text = quantity_text(interval.middle, row.unit)
    return text if is_short else f"{text} {interval_text(interval, row.unit)}"


def _result(rows: dict[str, BenchRow]) -> str:
    accuracy, loss = rows.get("accuracy"), rows.get("loss")
    if accuracy is not None and accuracy.samples:
        return percent_text(fmean(accuracy.samples))
    return f"loss {fmean(loss.samples):.4g}" if loss is not None and loss.samples else "n/a"


def _agreement(one: Agreement | None) -> str:
    if one is None:
        return ""
    found, digits = one.equality, 1
    if one.quantity == "accuracy":
        ends = [f"{100 * value:+.{digits}f}" for value in (found.low, found.high)]
        return f"{found.verdict} [{ends[0]}, {ends[1]}] points"
    ends = [f"{value:+.2g}" for value in (found.low, found.high)]
    return f"{found.verdict} [{ends[0]}, {ends[1]}]"


def _notes(summary: RunSummary) -> Iterator[tuple[str, str]]:
    reasons: dict[str, list[str]] = {}
    for way, rows in summary.rows.items():
        step = rows.get("step_s")
        if step is not None and "recipe" in step.conditions:
            version = step.conditions.get("version", "")
            yield f"  {way}", f"{step.conditions['recipe']} ({version})"
        elif step is not None and step.unread is not None:
            reasons.setdefault(step.unread, []).append(way)
    for reason, ways in reasons.items():
        yield "  skipped", f"{', '.join(ways)}: {reason}"
    if "data" in summary.first.conditions:
        yield "  data", summary.first.conditions["data"]


def _closing_lines(file: BenchFile) -> Iterator[tuple[str, str]]:
    yield from doubts(file.rows)
    for warning in file.warnings:
        yield "warning", warning
