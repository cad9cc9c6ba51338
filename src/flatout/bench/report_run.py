"""What the report shows of workloads: ways, step times, published figures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from itertools import chain
from statistics import median, quantiles

from flatout.bench import charts
from flatout.bench.references import references_for
from flatout.bench.run_summary import (
    RunSummary,
    epoch_times,
    gpu_ratios,
    speedup_of,
    summaries,
    verdict_of,
)
from flatout.bench.table_texts import ratio_text
from flatout.schema.bench import BenchFile, BenchRow
from flatout.schema.bench_comparison import ComparisonVerdict, LoadedBench
from flatout.schema.tuning import Interval
from flatout.schema.units import quantity_text, seconds_text

_LEAST_FOR_BOX = 4
# With a little more than the samples need, so that dots at the edges are whole.
_EDGE = 1.02


def sections(files: Sequence[LoadedBench]) -> str:
    """Everything about workloads; nothing if no file has one."""
    named = [(one.name, one.file, summaries(one.file)) for one in files]
    if not any(found for _, _, found in named):
        return ""
    workloads = dict.fromkeys(one.workload for _, _, found in named for one in found)
    parts = [
        _ways(named), _gpus(files), _epochs(named), _step_times(named), _references(list(workloads))
    ]  # fmt: skip
    return "".join(chain.from_iterable(parts))


_Named = Sequence[tuple[str, BenchFile, list[RunSummary]]]


def _ways(named: _Named) -> Iterator[str]:
    """Bars of every way against the plain loop of the same file."""
    lines: list[tuple[str, RunSummary, str, Interval, ComparisonVerdict]] = []
    for name, file, found in named:
        for one in found:
            for way in one.rows:
                ratio = speedup_of(one, way, file) if way != "plain" else None
                if ratio is not None:
                    lines.append((name, one, way, ratio, verdict_of(ratio, file)))
    if not lines:
        return
    scale = charts.ratio_scale([ratio for *_, ratio, _ in lines])
    yield '<section><h2>Speed against the plain loop</h2><p class="dim">Measured in turns, in fresh'
    yield " processes. To the right of the line is faster.</p>"
    for name, one, way, ratio, verdict in lines:
        step = one.rows[way].get("step_s")
        notes = [step.conditions.get(one, "") for one in ("recipe", "ladder")] if step else []
        note = "".join(f'<span class="note">{escape(one)}</span>' for one in notes if one)
        who = f"{one.workload} on {one.device}, {way}"
        values = " → ".join(_speed_text(one.speed(each)) for each in ("plain", way))
        title = f"{name}: {who}" if len(named) > 1 else who
        yield (
            f'<div class="row"><span>{escape(title)} <span class="dim values">'
            f'{escape(values)}</span></span><span class="chart">'
            f'{charts.ratio_bar(ratio, verdict, scale)}</span><span class="number">'
            f"{escape(ratio_text(ratio))}</span>"
            f'<strong class="{charts.verdict_class(verdict)}">{verdict}</strong>{note}</div>'
        )
    axis = charts.ratio_axis(scale)
    yield f'<div class="row head"><span></span><span class="chart">{axis}</span>'
    yield "<span></span><span></span></div></section>"


def _speed_text(row: BenchRow | None) -> str:
    return "n/a" if row is None else quantity_text(median(row.samples), row.unit)


def _gpus(files: Sequence[LoadedBench]) -> Iterator[str]:
    rows = [
        f"<tr>{_cells(one.name, ratio.workload, ratio.text, ratio_text(ratio.ratio))}</tr>"
        for one in files
        for ratio in gpu_ratios(one.file)
    ]
    if rows:
        yield "<section><h2>GPU against CPU, both tuned</h2>"
        yield f'<div class="wide"><table>{"".join(rows)}</table></div></section>'


def _epochs(named: _Named) -> Iterator[str]:
    """What people ask of a published network: how long its data takes."""
    rows = [
        f"<tr>{_cells(name, f'{one.workload} on {one.device}', epochs.text, way, text)}</tr>"
        for name, _, found in named
        for one in found
        if (epochs := epoch_times(one)) is not None
        for way, text in ((way, seconds_text(value)) for way, value in epochs.seconds.items())
    ]
    if rows:
        yield '<section><h2>Time of an epoch</h2><p class="dim">At the measured speed, without'
        yield ' validation and checkpoints.</p><div class="wide"><table>'
        yield f"{''.join(rows)}</table></div></section>"


def _step_times(named: _Named) -> Iterator[str]:
    """Box plots on one logarithmic scale for each workload."""
    rows: dict[str, list[tuple[str, BenchRow]]] = {}
    for name, _, found in named:
        for one in found:
            for way, of_way in one.rows.items():
                row = of_way.get("step_s")
                if row is not None and row.samples and min(row.samples) > 0:
                    who = f"{way} on {one.device}"
                    who = f"{name}: {who}" if len(named) > 1 else who
                    rows.setdefault(one.workload, []).append((who, row))
    if not rows:
        return
    yield '<section><h2>Step times</h2><p class="dim">Of blocks of steps, on a logarithmic scale'
    yield " for each workload. Box: the middle half; line: the median; dots: all.</p>"
    for workload, lines in rows.items():
        size = lines[0][1].conditions.get("size", "")
        yield f"<h3>{escape(workload)} <span>{escape(size)}</span></h3>"
        together = [sample for _, row in lines for sample in row.samples]
        ends = (min(together) / _EDGE, max(together) * _EDGE)
        for who, row in lines:
            low, high = (quantity_text(one, "s") for one in (min(row.samples), max(row.samples)))
            middle = quantity_text(median(row.samples), "s")
            yield (
                f'<div class="row"><span>{escape(who)}</span>'
                f'<span class="chart">{box_plot(row.samples, ends)}</span>'
                f'<span class="number">{escape(middle)}</span>'
                f'<span class="dim">{escape(f"{low} to {high}")}</span></div>'
            )
    yield "</section>"


def box_plot(samples: Sequence[float], ends: tuple[float, float]) -> str:
    """Quartiles as a box and all samples as dots, on a logarithmic scale between the ends."""

    def place(value: float) -> float:
        return 1 + 98 * math.log(value / ends[0]) / math.log(ends[1] / ends[0])

    parts = []
    if len(samples) >= _LEAST_FOR_BOX:
        first, middle, third = (place(one) for one in quantiles(samples, n=4, method="inclusive"))
        parts.append(
            f'<rect class="unclear" x="{first:.2f}%" y="4" width="{third - first:.2f}%"'
            ' height="14"/>'
        )
        parts.append(f'<line class="middle" x1="{middle:.2f}%" x2="{middle:.2f}%" y1="1" y2="21"/>')
    parts += [f'<circle class="dot" cx="{place(one):.2f}%" cy="11" r="2.2"/>' for one in samples]
    return f'<svg class="bar" aria-hidden="true">{"".join(parts)}</svg>'


def _references(workloads: Sequence[str]) -> Iterator[str]:
    rows = [
        f"<tr>{_cells(workload, one.text, one.at, one.device, one.settings, *why)}</tr>"
        for workload in workloads
        for one in references_for(workload)
        for why in [(one.comparable, one.source)]
    ]
    if not rows:
        return
    names = ("workload", "figure", "of", "device", "settings", "comparable?", "source")
    head = "".join(f"<th>{name}</th>" for name in names)
    yield "<section><h2>Published elsewhere</h2>"
    yield '<p class="dim">Read, not measured here.</p><div class="wide"><table>'
    yield f"<thead><tr>{head}</tr></thead>{''.join(rows)}</table></div></section>"


def _cells(*texts: str) -> str:
    return "".join(f"<td>{escape(text)}</td>" for text in texts)
