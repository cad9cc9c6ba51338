"""Output of `flatout loadtest`: seconds as they pass, the report, and comparisons."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from rich.live import Live
from rich.table import Table
from rich.text import Text

from flatout.bench.table_texts import ratio_text
from flatout.cli.render import show
from flatout.cli.render.tables import plain_table
from flatout.cli.render.wording import DOT, home_text
from flatout.schema.loadtest import (
    LatencySummary,
    LoadChange,
    LoadComparison,
    LoadError,
    LoadFile,
    LoadStep,
)
from flatout.schema.units import (
    bytes_text,
    count_text,
    counted_text,
    percent_text,
    quantity_text,
    rate_text,
    seconds_text,
)
from flatout.serve.loadtest import LoadEvent, LoadProgress, LoadStarted

_NUM_SECONDS = 8
_STYLES = {"faster": "green", "slower": "red"}


class LoadDisplay:
    """Shows a test while it runs, on stderr: a table on a terminal, else a line a second."""

    def __init__(self) -> None:
        self._console = show.make_console(is_error=True)
        is_alive = show.is_alive(self._console)
        live = Live(console=self._console, auto_refresh=False, transient=True)
        self._live = live if is_alive else None
        self._seconds: deque[LoadProgress] = deque(maxlen=_NUM_SECONDS)
        self._is_rate = self._is_search = False

    def __enter__(self) -> LoadDisplay:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live:
            self._live.stop()

    def take(self, event: LoadEvent) -> None:
        """Shows what has happened."""
        if isinstance(event, LoadStarted):
            self._is_rate = event.settings.rate_per_s is not None
            self._is_search = event.settings.until_latency_s is not None
            show.print_lines(self._console, list(_head(event)))
        elif isinstance(event, LoadStep):
            self._seconds.clear()
            if self._is_search:
                self._print(step_text(event))
        elif event.tick is None:
            self._show_warmup(event)
        else:
            self._seconds.append(event)
            self._show_second(event)

    def _show_warmup(self, event: LoadProgress) -> None:
        text = f"{level_text(event.level, is_rate=self._is_rate)}: warming up"
        if self._live:
            self._live.start()
            self._live.update(Text(text, "dim"), refresh=True)
        elif not self._is_search:
            self._print(text)

    def _show_second(self, event: LoadProgress) -> None:
        if self._live:
            self._live.update(self._table(event), refresh=True)
        elif not self._is_search:
            self._print(_second_text(event))

    def _print(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)

    def _table(self, event: LoadProgress) -> Table:
        level = level_text(event.level, is_rate=self._is_rate)
        table = plain_table(level)
        for name in ("answers", "p50", "p99", "errors", "queue"):
            # As wide as most numbers are, so that columns do not move every second.
            table.add_column(name, justify="right", min_width=7)
        for one in self._seconds:
            table.add_row(*_second_values(one))
        return table


def level_text(level: float, *, is_rate: bool) -> str:
    """A load: "200 requests/s", "8 users"."""
    return rate_text(level, "requests") if is_rate else counted_text(round(level), "user")


def step_level(step: LoadStep) -> str:
    """The load of a step."""
    is_rate = step.rate_per_s is not None
    return level_text(step.rate_per_s or float(step.users or 0), is_rate=is_rate)


def step_text(step: LoadStep) -> str:
    """A load with a latency to hold, on one line."""
    latency = f"p99 {seconds_text(step.latency.p99_s)}" if step.latency else "no answer"
    parts = [f"{step_level(step):>18}", rate_text(step.answers_per_s, "answers"), latency]
    if step.num_errors:
        parts.append(counted_text(step.num_errors, "error"))
    parts.append("in time" if step.is_held else "too slow")
    return DOT.join(parts)


def _second_values(event: LoadProgress) -> tuple[str, ...]:
    """Time, answers, p50, p99, errors and queue."""
    tick = event.tick
    assert tick is not None
    latencies = ("-" if one is None else seconds_text(one) for one in (tick.p50_s, tick.p99_s))
    depth = "" if event.queue_depth is None else f"{event.queue_depth:.0f}"
    counts = count_text(tick.num_answered), count_text(tick.num_errors)
    return f"{tick.at_s:.0f} s", counts[0], *latencies, counts[1], depth


def _second_text(event: LoadProgress) -> str:
    """A second on one line."""
    assert event.tick is not None
    at, answers, p50, p99, _, depth = _second_values(event)
    errors = counted_text(event.tick.num_errors, "error")
    parts = [f"{at:>6}", f"{answers:>7} answers", f"p50 {p50:>7}", f"p99 {p99:>7}", errors]
    return "  ".join([*parts, *([f"{depth} waiting"] if depth else [])])


def _head(event: LoadStarted) -> Iterator[tuple[str, str]]:
    settings = event.settings
    server = filter(None, (settings.server, settings.model))
    yield "server", DOT.join([settings.url, *server])
    inputs = counted_text(settings.num_inputs, "input")
    checked = "answers are checked" if settings.is_checked else "answers are not checked"
    size = f"up to {bytes_text(settings.request_bytes)}"
    yield "sends", DOT.join([settings.method, inputs, size, checked])
    level = level_text(
        settings.rate_per_s or float(settings.users or 1), is_rate=settings.rate_per_s is not None
    )
    duration = seconds_text(settings.duration_s)
    load = f"{level} for {duration}"
    if settings.until_latency_s is not None:
        limit = seconds_text(settings.until_latency_s)
        load = f"from {level} on, {duration} each, until p99 is above {limit}"
    yield "load", load


def print_load(file: LoadFile, outputs: Sequence[str]) -> None:
    """The report."""
    console = show.make_console()
    step = file.reported
    if file.settings.until_latency_s is not None and len(file.steps) > 1:
        for one in sorted(file.steps, key=lambda one: one.rate_per_s or one.users or 0):
            console.print(Text(step_text(one)), soft_wrap=True)
        console.print()
    lines = list(_result_lines(file)) if step else [("result", "nothing was measured")]
    show.print_lines(console, lines)
    for warning in file.warnings:
        show.print_note(f"note: {warning}")
    if outputs:
        show.print_lines(console, [("written", ", ".join(map(home_text, outputs)))])


def _result_lines(file: LoadFile) -> Iterator[tuple[str, str]]:
    step = file.reported
    assert step is not None
    limit_s = file.settings.until_latency_s
    if limit_s is not None:
        held = f"p99 within {seconds_text(limit_s)}"
        if file.best is None:
            yield "highest", f"no load had its {held}; the last one:"
        else:
            yield "highest", f"{step_level(step)}, with {held}"
    measured = f"{count_text(step.num_requests)} in {seconds_text(step.measured_s)}"
    if file.is_interrupted:
        measured += ", interrupted"
    yield "requests", f"{measured}{DOT}{step_level(step)}"
    yield "throughput", rate_text(step.answers_per_s, "answers")
    if step.latency is not None:
        yield "latency", latency_text(step.latency)
    yield "errors", errors_text(step)
    received = step.received_bytes / max(step.num_answered, 1)
    yield "bytes", f"{bytes_text(step.sent_bytes)} sent{DOT}{bytes_text(received)} an answer"
    if step.server is not None:
        yield "server", server_text(step)
    yield "CPUs", cpus_text(step)


def latency_text(latency: LatencySummary) -> str:
    """The percentiles."""
    values = [
        ("p50", latency.p50_s), ("p90", latency.p90_s), ("p99", latency.p99_s),
        ("p99.9", latency.p999_s), ("longest", latency.max_s),
    ]  # fmt: skip
    return DOT.join(f"{name} {seconds_text(value)}" for name, value in values)


def errors_text(step: LoadStep) -> str:
    """Errors by kind, with their share."""
    if not step.errors:
        return "none"
    share = percent_text(step.num_errors / step.num_requests)
    return f"{share}: " + ", ".join(error_text(error) for error in step.errors)


def error_text(error: LoadError) -> str:
    """One kind: "12 of status 503"."""
    name = f"status {error.status}" if error.kind == "status" else error.kind
    return f"{count_text(error.count)} {name}"


def server_text(step: LoadStep) -> str:
    """Queue and batches, as far as the server reports them."""
    found = step.server
    assert found is not None
    parts = []
    if found.mean_batch is not None:
        parts.append(f"batch size {found.mean_batch:.3g}")
    if found.mean_queue_s is not None:
        parts.append(f"{seconds_text(found.mean_queue_s)} in the queue")
    if found.max_queue_depth is not None:
        parts.append(f"at most {found.max_queue_depth:.0f} waiting")
    return DOT.join(parts) or "reports neither queue nor batches"


def cpus_text(step: LoadStep) -> str:
    """CPUs of generator and server, and how late the generator was."""
    parts = []
    if step.generator_cpus is not None:
        parts.append(f"generator {step.generator_cpus:.2f}")
    if step.server_cpus is not None:
        parts.append(f"server {step.server_cpus:.2f}")
    else:
        parts.append(f"server unknown ({step.unread.get('server_cpus', 'not on this machine')})")
    if step.rate_per_s is not None and step.lag_s is not None:
        parts.append(f"generator late by {seconds_text(step.lag_s)} (p99)")
    return DOT.join(parts)


def print_comparison(comparison: LoadComparison) -> None:
    """The second test against the first."""
    console = show.make_console()
    table = plain_table("", comparison.first, comparison.second, "ratio", "")
    for change in comparison.changes:
        verdict = Text(change.verdict, _STYLES.get(change.verdict, ""))
        if change.why:
            verdict.append(f" ({change.why})", "dim")
        ratio = "" if change.ratio is None else ratio_text(change.ratio)
        table.add_row(change.name, *change_texts(change), ratio, verdict)
    console.print(table)
    for name, first, second in comparison.differing:
        show.print_note(f"differs: {name}: {first} -> {second}")
    for warning in comparison.warnings:
        show.print_note(f"note: {warning}")


def change_texts(change: LoadChange) -> tuple[str, str]:
    """Both values of a change."""
    first, second = (quantity_text(one, change.unit) for one in (change.first, change.second))
    return first, second
