"""A load test as JSON, or as one HTML file without scripts that loads nothing.

Whatever comes from a server is escaped; the page's Content-Security-Policy forbids the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from string import Template

from flatout.schema.loadtest import LoadFile, LoadStep
from flatout.schema.units import (
    bytes_text,
    count_text,
    counted_text,
    percent_text,
    rate_text,
    seconds_text,
)
from flatout.serve import load_charts
from flatout.serve.load_charts import Axis, LoadCurve
from flatout.system import atomic_files

_TEMPLATE = Path(__file__).with_name("load_report.html.tmpl")
_BATCH, _QUEUE, _CPUS = "samples in a batch", "in the queue", "CPUs of the server"
_MOST_NUMBER = 24
# Shares of answers that are marked, by one over the rest: 50 %, 90 %, 99 % ...
_SHARES = {2.0: "50 %", 10.0: "90 %", 100.0: "99 %", 1e3: "99.9 %", 1e4: "99.99 %"}


def write(path: Path, file: LoadFile) -> None:
    """Writes a result, or a report, by the ending of the path."""
    if path.suffix.lower() == ".json":
        atomic_files.write_json(path, file)
    else:
        atomic_files.write_atomically(path, page(file).encode("utf-8", "replace"))


def page(file: LoadFile) -> str:
    """The report as HTML."""
    step = file.reported
    return Template(_TEMPLATE.read_text(encoding="utf-8")).substitute(
        title=escape(f"flatout loadtest: {file.settings.url}"),
        subtitle=escape(f"{file.at} · generator on {file.machine}"),
        warnings=_warnings(file),
        summary="" if step is None else "".join(_summary(step)),
        loads="".join(_loads(file)),
        spread="" if step is None else _spread(step),
        seconds="" if step is None else "".join(_seconds(step)),
        server="" if step is None else _table("Queue and batches", [], [*_server_rows(step)]),
        errors="" if step is None else _errors(step),
        settings=_settings(file),
        footer=escape(f"Made by flatout {file.flatout} loadtest."),
    )


def _level(step: LoadStep) -> str:
    if step.rate_per_s is not None:
        return rate_text(step.rate_per_s, "requests")
    return counted_text(step.users or 0, "user")


def _warnings(file: LoadFile) -> str:
    texts = list(file.warnings)
    if file.is_interrupted:
        texts.insert(0, "the test was interrupted")
    if file.finding is not None:
        texts.insert(0, " ".join(filter(None, (file.finding.problem, file.finding.because))))
    items = "".join(f"<li>{escape(text)}</li>" for text in texts)
    return f'<ul class="warnings" aria-label="Warnings">{items}</ul>' if items else ""


def _summary(step: LoadStep) -> Iterator[str]:
    values = [("load", _level(step)), ("throughput", rate_text(step.answers_per_s, "answers"))]
    if step.latency is not None:
        values += [
            (name, seconds_text(value))
            for name, value in (
                ("p50", step.latency.p50_s), ("p90", step.latency.p90_s),
                ("p99", step.latency.p99_s), ("p99.9", step.latency.p999_s),
                ("longest", step.latency.max_s),
            )
        ]  # fmt: skip
    values.append(("errors", percent_text(step.num_errors / max(step.num_requests, 1))))
    for name, value in values:
        yield f'<div class="figure"><strong>{escape(value)}</strong>{escape(name)}</div>'


def _loads(file: LoadFile) -> Iterator[str]:
    """Latency over throughput of all loads, and their table."""
    steps = sorted(file.steps, key=lambda one: one.rate_per_s or one.users or 0)
    known = [(step.answers_per_s, step.latency) for step in steps if step.latency is not None]
    limit_s = file.settings.until_latency_s
    if len(known) < 2:
        return
    curves = [
        LoadCurve("p50", [(rate, found.p50_s) for rate, found in known], "first", is_dotted=True),
        LoadCurve("p99", [(rate, found.p99_s) for rate, found in known], "second", is_dotted=True),
    ]
    shown = [latency for curve in curves for _, latency in curve.points]
    shown += [limit_s] if limit_s is not None else []
    x = load_charts.axis_from_zero([rate for rate, _ in known], _count)
    y = load_charts.axis_of_logs(shown, seconds_text)
    yield "<section><h2>Latency over throughput</h2>"
    yield f'<p class="dim">Answers per second to the right. {load_charts.legend(curves)}</p>'
    yield load_charts.plot(curves, x, y, limit_s)
    head = [
        "load", "answers/s", "p50", "p90", "p99", "p99.9", "errors", _BATCH, _QUEUE, _CPUS, "",
    ]  # fmt: skip
    yield _table("Loads", head, [_load_row(step) for step in steps])
    yield "</section>"


def _load_row(step: LoadStep) -> list[str]:
    found = step.latency
    latencies = (
        ["-"] * 4 if found is None
        else [seconds_text(one) for one in (found.p50_s, found.p90_s, found.p99_s, found.p999_s)]
    )  # fmt: skip
    held = {None: "", True: "in time", False: "too slow"}[step.is_held]
    said = dict(_server_rows(step))
    server = [said.get(name, "-") for name in (_BATCH, _QUEUE, _CPUS)]
    return [
        _level(step), f"{step.answers_per_s:,.1f}", *latencies, count_text(step.num_errors),
        *server, held,
    ]  # fmt: skip


def _server_rows(step: LoadStep) -> Iterator[tuple[str, str]]:
    """What is known of the server during a load."""
    found = step.server
    if found is not None:
        if found.num_batches is not None:
            yield "batches", count_text(found.num_batches)
        if found.mean_batch is not None:
            yield _BATCH, f"{found.mean_batch:.3g}"
        if found.mean_queue_s is not None:
            yield _QUEUE, seconds_text(found.mean_queue_s)
        if found.max_queue_depth is not None:
            yield "longest queue", counted_text(round(found.max_queue_depth), "request")
    if step.server_cpus is not None:
        yield _CPUS, f"{step.server_cpus:.2f}"


def _spread(step: LoadStep) -> str:
    """The latency that each share of the answers does not exceed."""
    total = sum(bucket.count for bucket in step.buckets)
    points, so_far = list[tuple[float, float]](), 0
    for bucket in step.buckets:
        points.append((total / (total - so_far), bucket.most_s))
        so_far += bucket.count
    if len(points) < 2:
        return ""
    points.append((float(total), points[-1][1]))
    x = Axis(1.0, float(total), lambda one: _SHARES[one], is_log=True, marks=tuple(_SHARES))
    y = load_charts.axis_of_logs([latency for _, latency in points], seconds_text)
    chart = load_charts.plot([LoadCurve("latency by share of answers", points)], x, y)
    return f"<section><h2>Share of answers within a latency</h2>{chart}</section>"


def _seconds(step: LoadStep) -> Iterator[str]:
    if len(step.seconds) < 2:
        return
    x = Axis(0.0, float(len(step.seconds) - 1), lambda one: seconds_text(one) if one else "0 s")
    counts = [
        LoadCurve("answers per second", [(one.at_s, one.num_answered) for one in step.seconds]),
        LoadCurve("errors", [(one.at_s, one.num_errors) for one in step.seconds], "bad"),
    ]
    depths = [(one.at_s, one.queue_depth) for one in step.seconds if one.queue_depth is not None]
    if depths:
        counts.append(LoadCurve("requests in the server's queue", depths, "second"))
    most = [value for curve in counts for _, value in curve.points]
    y = load_charts.axis_from_zero(most, _count)
    yield from _over_time("Answers over time", counts, x, y)
    latencies = [
        LoadCurve("p50", [(one.at_s, one.p50_s) for one in step.seconds if one.p50_s]),
        LoadCurve("p99", [(one.at_s, one.p99_s) for one in step.seconds if one.p99_s], "second"),
    ]
    shown = [value for curve in latencies for _, value in curve.points]
    if shown:
        y = load_charts.axis_of_logs(shown, seconds_text)
        yield from _over_time("Latency over time", latencies, x, y)


def _over_time(title: str, curves: Sequence[LoadCurve], x: Axis, y: Axis) -> Iterator[str]:
    yield f"<section><h2>{title}</h2><p class='dim'>{load_charts.legend(curves)}</p>"
    yield f"{load_charts.plot(curves, x, y)}</section>"


def _errors(step: LoadStep) -> str:
    rows = [
        [one.kind, "" if one.status is None else str(one.status), count_text(one.count),
         one.example or ""]
        for one in step.errors
    ]  # fmt: skip
    return _table("Errors", ["kind", "status", "requests", "example"], rows)


def _settings(file: LoadFile) -> str:
    settings, step = file.settings, file.reported
    rows = [
        ["request", f"{settings.method} {settings.url}, {bytes_text(settings.request_bytes)}"],
        ["server", " ".join(filter(None, (settings.server, settings.model))) or "unknown"],
        ["duration", f"{seconds_text(settings.duration_s)} after a warm-up of"
         f" {seconds_text(settings.warmup_s)}"],
        ["a client gives up after", seconds_text(settings.timeout_s)],
        ["answers were checked", "yes" if settings.is_checked else "no"],
    ]  # fmt: skip
    if step is not None and step.generator_cpus is not None:
        rows.append(["CPUs of the generator", f"{step.generator_cpus:.2f}"])
    return _table("Settings", [], rows)


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _cell_class(cell: str) -> str:
    """What is longer than a number or a name may be wrapped."""
    return ' class="text"' if len(cell) > _MOST_NUMBER else ""


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table with the names of its columns; without them, its first column has names."""
    if not rows:
        return ""
    lines = []
    for row in rows:
        cells = [f"<td{_cell_class(cell)}>{escape(cell)}</td>" for cell in row]
        if not head:
            cells[0] = f'<th scope="row">{escape(row[0])}</th>'
        lines.append(f"<tr>{''.join(cells)}</tr>")
    names = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    top = f"<thead><tr>{names}</tr></thead>" if head else ""
    table = f'<div class="{"wide" if head else "pairs"}"><table>{top}{"".join(lines)}</table></div>'
    return f"<section><h2>{escape(title)}</h2>{table}</section>"
