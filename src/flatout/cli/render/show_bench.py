"""The limits of a machine, and the progress of their measurement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.progress import BarColumn, Progress, ProgressColumn, Task, TimeElapsedColumn
from rich.text import Text

from flatout.bench import api as bench_api
from flatout.bench.limits import Doing, is_busy
from flatout.bench.statistics import drift, outliers
from flatout.cli.render import show
from flatout.cli.render.wording import DOT, home_text, machine_text
from flatout.schema.bench import BenchFile, BenchRow
from flatout.schema.tuning import Interval
from flatout.schema.units import (
    PREFIXED_UNITS,
    count_text,
    noun_text,
    percent_text,
    quantity_text,
)

_VALUE_WIDTH, _INTERVAL_WIDTH = 14, 20
_SAMPLES_FOR_OUTLIERS = 5


class _What(ProgressColumn):
    """What is measured now."""

    def render(self, task: Task) -> Text:
        """The text, as it is: a folder's name may look like markup."""
        return Text(task.description)


class LimitsProgress:
    """Shows what is measured, on stderr: a bar on a terminal, else a line for each."""

    def __init__(self) -> None:
        self._console = show.make_console(is_error=True)
        self._bar: Progress | None = None
        if show.is_alive(self._console):
            self._bar = Progress(
                BarColumn(24), _What(), TimeElapsedColumn(),
                console=self._console, transient=True,
            )  # fmt: skip
        self._task = self._bar.add_task("", total=1.0) if self._bar else None

    def __enter__(self) -> LimitsProgress:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, doing: Doing) -> None:
        """Shows what begins now."""
        if self._bar is None or self._task is None:
            show.print_note(f"{percent_text(doing.done, 0):>5}  {doing.what}")
            return
        # Not before there is something to measure: a stored result is shown at once.
        self._bar.start()
        self._bar.update(self._task, completed=doing.done, description=doing.what)


def print_limits(limits: bench_api.Limits) -> None:
    """The limits as a table; then what could not be measured, what is doubtful, and the sources."""
    console = show.make_console()
    file = limits.file
    show.print_lines(console, _head_lines(limits))
    console.print()
    rows = [row for row in file.rows if row.samples]
    width = max([0, *(len(row.label) for row in rows)])
    header = f"{'':<{width}}{'median':>{_VALUE_WIDTH}}  {'95 % interval':<{_INTERVAL_WIDTH}}"
    has_peaks = any(row.vendor for row in rows)
    console.print(Text(header + ("  of the peak" if has_peaks else ""), "dim"), soft_wrap=True)
    group = None
    for row in rows:
        if group not in (None, _group(row)):
            console.print()
        group = _group(row)
        console.print(Text(_row_line(row, width, file).rstrip()), soft_wrap=True)
    console.print()
    show.print_lines(console, list(_closing_lines(limits)))


def _head_lines(limits: bench_api.Limits) -> list[tuple[str, str]]:
    file = limits.file
    matmul = next((row for row in file.rows if row.id.startswith("limits/matmul/")), None)
    conditions = matmul.conditions if matmul else {}
    name = file.settings.get("name", "")
    device = [file.settings.get("device", ""), *([name] if name else [])]
    if "threads" in conditions:
        threads = conditions["threads"]
        device.append(f"{threads} {noun_text(int(threads), 'thread')}")
    device.append(f"torch {file.versions.get('torch', 'unknown')}")
    lines = [("machine", machine_text(file.machine)), ("device", DOT.join(device))]
    if "instructions" in conditions:
        lines.append(("CPU code", conditions["instructions"]))
    how = f"{file.settings.get('effort', '')}, {file.ended.at.replace('T', ' ').rstrip('Z')} UTC"
    return [*lines, ("measured", how if limits.is_new else f"{how}{DOT}again: --again")]


def _row_line(row: BenchRow, width: int, file: BenchFile) -> str:
    interval = bench_api.interval_of(row, is_busy=is_busy(file), num_processes=file.num_processes)
    middle = interval.middle if interval else row.samples[0]
    value = quantity_text(middle, row.unit)
    spread = interval_text(interval, row.unit) if interval else "measured once"
    peak = f"{percent_text(middle / row.vendor, 0)} of {_short(row)}" if row.vendor else ""
    return f"{row.label:<{width}}{value:>{_VALUE_WIDTH}}  {spread:<{_INTERVAL_WIDTH}}  {peak}"


def interval_text(interval: Interval, unit: str) -> str:
    """An interval, in the unit of its middle if its ends have the same: "[8.1, 8.4]"."""
    texts = [quantity_text(value, unit) for value in (interval.low, interval.high)]
    low, high = (text.partition(" ") for text in texts)
    of_middle = quantity_text(interval.middle, unit).partition(" ")[2]
    if low[2] == high[2] == of_middle:
        return f"[{low[0]}, {high[0]}]"
    name = PREFIXED_UNITS.get(unit, "")
    return "[{}, {}]".format(*(text.removesuffix(name) for text in texts))


def _short(row: BenchRow) -> str:
    assert row.vendor is not None
    name = PREFIXED_UNITS.get(row.unit, "")
    return quantity_text(row.vendor, row.unit).removesuffix(name).strip()


def _group(row: BenchRow) -> str:
    return row.id.split("/")[1]


def _closing_lines(limits: bench_api.Limits) -> Iterator[tuple[str, str]]:
    file = limits.file
    reasons: dict[str, list[str]] = {}
    for row in file.rows:
        if row.unread is not None:
            reasons.setdefault(row.unread, []).append(row.label)
    for reason, labels in reasons.items():
        yield "unread", f"{'; '.join(labels)}: {reason}"
    yield from doubts(file.rows)
    for warning in file.warnings:
        yield "warning", warning
    sources = {row.vendor_source: None for row in file.rows if row.vendor_source}
    for source in sources:
        yield "peak", f"{file.settings.get('name', '')}: {source}"
    if limits.kept is not None:
        yield "stored", limits.kept
    yield "file", home_text(limits.path)


def doubts(rows: Sequence[BenchRow]) -> Iterator[tuple[str, str]]:
    """Outliers and trends, which are shown and not dropped."""
    enough = [row for row in rows if len(row.samples) >= _SAMPLES_FOR_OUTLIERS]
    found = [(row.label, len(outliers(row.samples))) for row in enough]
    texts = [f"{label} {count_text(num)}" for label, num in found if num]
    if texts:
        yield "outliers", f"{'; '.join(texts)} (kept)"
    changes = [(row.label, drift(row.samples)) for row in enough]
    drifts = [f"{label} {100 * change:+.0f} %" for label, change in changes if change is not None]
    if drifts:
        yield "drift", f"from the first to the last third: {'; '.join(drifts)}"
