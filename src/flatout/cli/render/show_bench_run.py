"""Output of `flatout bench run`."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from rich.console import Console
from rich.text import Text

from flatout.bench.api import interval_of
from flatout.bench.limits import is_busy
from flatout.bench.references import references_for
from flatout.bench.run_summary import (
    SPEEDS,
    RunSummary,
    epoch_times,
    gpu_ratios,
    summaries,
    verdict_of,
)
from flatout.bench.table_texts import ratio_text
from flatout.cli.render import show
from flatout.cli.render.show_bench import doubts, interval_text
from flatout.cli.render.tables import plain_table
from flatout.cli.render.wording import DOT, machine_text, near_text
from flatout.schema.bench import BenchFile, BenchRow
from flatout.schema.units import count_text, quantity_text, seconds_text

_QUANTITIES = {
    "samples_per_s": "speed", "tokens_per_s": "speed", "step_s": "step", "mfu": "MFU",
    "peak_memory": "peak memory", "energy": "energy", "data_wait_share": "waiting for data",
    "host_share": "host share", "time_to_steps": "{} steps after", "loss": "loss then",
    "accuracy": "accuracy then",
}  # fmt: skip


def print_run(file: BenchFile, *, out: str | None, html: str | None) -> None:
    """A table for each workload and device; then what it means, doubts and files."""
    console = show.make_console()
    show.print_lines(console, _head_lines(file))
    for summary in summaries(file):
        console.print()
        _print_summary(console, file, summary)
    console.print()
    show.print_lines(console, list(_closing_lines(file)))
    if out is not None:
        show.print_lines(console, [("file", near_text(out))])
    if html is not None:
        show.print_lines(console, [("report", near_text(html))])


def _head_lines(file: BenchFile) -> list[tuple[str, str]]:
    processes = file.settings.get("num_processes", "unknown")
    how = f"{file.settings.get('effort', '')}, {processes} fresh processes for each way, in turns"
    if processes == "1":
        how = f"{file.settings.get('effort', '')}, one process for each way: --quick"
    device = f"{file.settings.get('device', '')}{DOT}torch {file.versions.get('torch', 'unknown')}"
    return [("machine", machine_text(file.machine)), ("device", device), ("measured", how)]


def _print_summary(console: Console, file: BenchFile, summary: RunSummary) -> None:
    conditions = summary.first.conditions
    title = [summary.workload, conditions.get("size", ""), f"batch {conditions.get('batch_size')}"]
    console.print(Text(DOT.join([*title, summary.device]), "bold"), soft_wrap=True)
    table = plain_table("", *summary.rows)
    quantities = dict.fromkeys(name for rows in summary.rows.values() for name in rows)
    for name in quantities:
        rows = [of_way.get(name) for of_way in summary.rows.values()]
        if any(row is not None and row.samples for row in rows):
            table.add_row(_label(name, rows), *(_value(name, row, file) for row in rows))
    epochs = epoch_times(summary)
    if epochs is not None:
        times = {way: seconds_text(value) for way, value in epochs.seconds.items()}
        table.add_row(f"  {epochs.text}", *(times.get(way, "n/a") for way in summary.rows))
    if table.row_count:
        console.print(table)
    show.print_lines(console, [(f"  {name}", text) for name, text in _notes(summary, file)])


def _label(name: str, rows: list[BenchRow | None]) -> str:
    text = _QUANTITIES.get(name, name)
    steps = [row.conditions.get("steps", "") for row in rows if row is not None]
    number = next((count_text(int(one)) for one in steps if one.isdecimal()), "the first")
    return "  " + text.replace("{}", number)


def _value(name: str, row: BenchRow | None, file: BenchFile) -> str:
    """The median; of a step with its interval, which is as wide for the speed."""
    if row is None or not row.samples:
        return "n/a" if row is not None else ""
    text = quantity_text(median(row.samples), row.unit)
    if name != "step_s":
        return text
    interval = interval_of(row, is_busy=is_busy(file), num_processes=file.num_processes)
    return f"{text} {interval_text(interval, row.unit)}" if interval is not None else text


def _notes(summary: RunSummary, file: BenchFile) -> Iterator[tuple[str, str]]:
    if summary.speedup is not None:
        verdict = verdict_of(summary.speedup, file)
        yield "flatout", f"{ratio_text(summary.speedup)} of the plain loop: {verdict}"
    step = summary.rows.get("flatout", {}).get("step_s")
    if step is not None and "recipe" in step.conditions:
        yield "recipe", step.conditions["recipe"]
    if step is not None and "ladder" in step.conditions:
        yield "ladder", step.conditions["ladder"]
    if "data" in summary.first.conditions:
        yield "data", summary.first.conditions["data"]
    reasons: dict[str, list[str]] = {}
    for way, rows in summary.rows.items():
        for name, row in rows.items():
            if row.unread is not None:
                label = _label(name, [row]).strip()
                reasons.setdefault(row.unread, []).append(f"{label} ({way})")
    for reason, labels in reasons.items():
        is_all = len(labels) >= len(_QUANTITIES) - len(SPEEDS)
        names = [label.partition(" (")[0] for label in labels]
        yield "unread", f"{'everything' if is_all else ', '.join(dict.fromkeys(names))}: {reason}"
    for one in references_for(summary.workload)[:2]:
        yield "elsewhere", f"{one.text}: {one.device}, {one.at} ({one.settings})"


def _closing_lines(file: BenchFile) -> Iterator[tuple[str, str]]:
    for one in gpu_ratios(file):
        yield one.workload, f"{one.text} {ratio_text(one.ratio)}"
    yield from doubts(file.rows)
    for warning in file.warnings:
        yield "warning", warning
