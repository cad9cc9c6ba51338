"""The report of `flatout profile` as one HTML file without scripts that loads nothing.

Whatever comes from an experiment is escaped; the page's Content-Security-Policy forbids the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path
from string import Template

from flatout.bench.report import check_writable
from flatout.bench.table_texts import ratio_text
from flatout.schema.step_profile import (
    PART_NAMES,
    Advice,
    LineTime,
    MemoryUse,
    OperatorTime,
    StepProfile,
)
from flatout.schema.units import bytes_text, percent_text, rate_text, seconds_text
from flatout.system import atomic_files

_TEMPLATE = Path(__file__).with_name("profile.html.tmpl")
_MOST_ROWS = 60


def write_page(path: Path, report: StepProfile) -> None:
    """Writes the page.

    Raises:
        UsageError: bench-report-not-writable.
    """
    check_writable(path)
    atomic_files.write_atomically(path, page(report).encode("utf-8", "replace"))


def page(report: StepProfile) -> str:
    """The report as HTML."""
    device = report.device_name or report.device
    rate = ""
    if report.samples_per_s is not None:
        rate = f", {rate_text(report.samples_per_s, report.unit)}"
    step = f"{seconds_text(report.mean_step_s)} a step{rate}"
    overhead = f"under the profiler x{report.overhead:.2f}"
    subtitle = f"{device}, torch {report.torch}: {step}, {overhead}; {report.at}"
    return Template(_TEMPLATE.read_text(encoding="utf-8")).substitute(
        title=escape(f"flatout profile: {report.subject}"),
        subtitle=escape(subtitle),
        advice="".join(_advice(report)),
        split="".join(_split(report)),
        lines=_lines(report.lines, report),
        operators=_operators("Operators", report.operators, report),
        kernels=_operators("Kernels", report.kernels, report),
        layers=_operators("Layers", report.layers, report),
        memory=_memory(report.memory),
        settings=_table(
            "Recipe and settings",
            ["", "value"],
            [[name, str(value)] for name, value in (report.recipe | report.settings).items()],
        ),
        footer=escape(f"Made by flatout {report.flatout} profile."),
    )


def _advice(report: StepProfile) -> Iterator[str]:
    yield "<section><h2>Advice</h2>"
    if not report.advice:
        yield "<p>Nothing stands out that a change would speed up.</p>"
    for one in report.advice:
        yield f'<div class="advice"><strong>{escape(one.problem)}</strong>'
        yield f"<p>{escape(one.because)}.</p>" if one.because else ""
        yield f"<p><code>{escape(one.fix)}</code></p>"
        for line in one.lines:
            place = f"{Path(line.file).name}:{line.line}"
            yield f"<p><code>{escape(place)}  {escape(line.text)}</code></p>"
        yield f'<p class="dim">{escape(_gain(one))}</p>'
        yield f'<p class="dim">see: <code>{escape(one.see)}</code></p></div>'
    yield "</section>"


def _gain(advice: Advice) -> str:
    text = f"predicted {ratio_text(advice.speedup)}, {advice.basis}"
    if advice.measured is not None:
        text += f"; measured {ratio_text(advice.measured)}"
        text += f"; {advice.verdict}" if advice.verdict else ""
    elif advice.not_proved is not None:
        text += f"; not proved: {advice.not_proved}"
    return text + (f"; {advice.changes_result}" if advice.changes_result else "")


def _split(report: StepProfile) -> Iterator[str]:
    for one in report.split:
        if not one.seconds:
            continue
        share = one.seconds / report.mean_step_s
        yield (
            f'<div class="row"><span>{escape(PART_NAMES[one.part])}</span>'
            f'<span class="chart"><svg class="bar" aria-hidden="true"><rect x="0" y="2"'
            f' width="{100 * share:.2f}%" height="12"/></svg></span><span class="number">'
            f"{escape(percent_text(share))} · {escape(seconds_text(one.seconds))}</span></div>"
        )


def _lines(lines: Sequence[LineTime], report: StepProfile) -> str:
    rows = (
        [
            f"{Path(line.file).name}:{line.line}",
            line.text,
            seconds_text(line.seconds),
            percent_text(line.seconds / report.mean_step_s),
        ]
        for line in lines[:_MOST_ROWS]
    )
    return _table("Lines of Python", ["line", "", "time", "share"], rows, num_numbers=2)


def _operators(title: str, rows: Sequence[OperatorTime], report: StepProfile) -> str:
    has_device = any(row.device_s is not None for row in rows)
    head = ["name", "shapes", "calls", "CPU self", "CPU total"]
    head += ["GPU self", "share"] if has_device else ["share"]
    cells = []
    for row in rows[:_MOST_ROWS]:
        own_s = row.self_s if row.device_s is None else row.device_s
        device = [seconds_text(row.device_s or 0.0)] if has_device else []
        share = percent_text(own_s / report.mean_step_s)
        numbers = [f"{row.calls:,.4g}", seconds_text(row.self_s), seconds_text(row.total_s)]
        cells.append([row.name, row.shapes, *numbers, *device, share])
    return _table(title, head, cells, num_numbers=len(head) - 2)


def _memory(use: MemoryUse) -> str:
    if use.peak_bytes is None or not use.timeline:
        return ""
    rows = (
        [one.name, bytes_text(one.num_bytes), percent_text(one.num_bytes / use.peak_bytes)]
        for one in use.at_peak
    )
    end_s = use.timeline[-1][0] or 1.0
    points = [
        f"{100 * at_s / end_s:.2f},{100 - 95 * num_bytes / use.peak_bytes:.2f}"
        for at_s, num_bytes in use.timeline
    ]
    label = f"Memory of tensors during a step, {bytes_text(use.peak_bytes)} at the peak"
    chart = (
        f'<section><h2>Memory</h2><p class="dim">{escape(label)}.</p><svg class="timeline"'
        f' role="img" aria-label="{escape(label)}" viewBox="0 0 100 100"'
        f' preserveAspectRatio="none"><polygon points="0,100 {" ".join(points)} 100,100"/>'
        f'<polyline points="{" ".join(points)}"/></svg></section>'
    )
    head = ["at the peak", "bytes", "share"]
    return chart + _table("What holds it", head, rows, num_numbers=2)


def _table(
    title: str, head: Sequence[str], rows: Iterable[Sequence[str]], *, num_numbers: int = 0
) -> str:
    """An escaped table; nothing without rows. num_numbers: of its last columns."""
    first = len(head) - num_numbers
    kinds = ['class="number"' if place >= first else "" for place in range(len(head))]

    def line(cells: Sequence[str], tag: str) -> str:
        shown = zip(cells, kinds, strict=True)
        return "".join(f"<{tag} {kind}>{escape(cell)}</{tag}>" for cell, kind in shown)

    lines = "".join(f"<tr>{line(row, 'td')}</tr>" for row in rows)
    if not lines:
        return ""
    table = f"<table><thead><tr>{line(head, 'th')}</tr></thead>{lines}</table>"
    return f'<section><h2>{escape(title)}</h2><div class="wide">{table}</div></section>'
