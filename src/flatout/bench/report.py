"""The report: one HTML file without scripts that loads nothing.

Whatever a file contains is escaped; the page's Content-Security-Policy forbids the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import groupby
from pathlib import Path
from string import Template

from flatout.bench import charts, report_run
from flatout.bench.statistics import LEAST_DIFFERENCE
from flatout.bench.table_texts import doubt_text, part_text, ratio_text, value_text
from flatout.errors import UsageError
from flatout.schema.bench import BenchFile, DeviceState
from flatout.schema.bench_comparison import BenchComparison, ComparedRow, LoadedBench
from flatout.schema.tuning import Interval
from flatout.schema.units import counted_text, percent_text, quantity_text
from flatout.system import atomic_files

_EXAMPLES = {
    "--html": "report.html", "--out": "run.json", "--trace": "trace.json", "--output": "load.html",
}  # fmt: skip
_TEMPLATE = Path(__file__).with_name("report.html.tmpl")
# More of a file is a table, not a picture.
_MOST_CHARTED = 150


def write_report(path: Path, files: Sequence[LoadedBench], comparison: BenchComparison) -> None:
    """Writes the page.

    Raises:
        UsageError: bench-report-not-writable.
    """
    check_writable(path)
    atomic_files.write_atomically(path, page(files, comparison).encode("utf-8", "replace"))


def check_writable(path: Path, option: str = "--html") -> None:
    """Refuses a path that no file can have, before something is measured for it.

    Args:
        path: of a file.
        option: that it was given with.

    Raises:
        UsageError: bench-report-not-writable.
    """
    if (path.exists() and not path.is_file()) or not path.parent.is_dir():
        raise UsageError(
            "bench-report-not-writable",
            f"cannot write to {path}.",
            because="it is not a regular file" if path.exists() else "its folder does not exist",
            fix=f"name a file in a folder that exists, such as `{option} {_EXAMPLES[option]}`",
        )


def page(files: Sequence[LoadedBench], comparison: BenchComparison) -> str:
    """The report as HTML. files: those that were compared, in the same order."""
    names = [file.name for file in comparison.files]
    title = " against ".join([", ".join(names[1:]), names[0]]) if names[1:] else names[0]
    return Template(_TEMPLATE.read_text(encoding="utf-8")).substitute(
        title=escape(f"flatout bench: {title}"),
        subtitle=escape(_subtitle(comparison)),
        warnings=_warnings(comparison),
        machines=_machines(comparison),
        ratios="".join(_ratios(comparison)),
        runs=report_run.sections(files),
        groups=_groups(comparison),
        parts=_parts(comparison),
        rooflines=_rooflines(files),
        samples="".join(_samples(files, comparison)),
        values=_values(comparison),
        differing=_table("What differs", ["", *names], (
            [one.name, *("unknown" if value is None else value for value in one.values)]
            for one in comparison.differing
        )),
        settings=_settings(files),
        footer=escape(_footer(comparison)),
    )  # fmt: skip


def _subtitle(comparison: BenchComparison) -> str:
    if len(comparison.files) == 1:
        return counted_text(len(comparison.rows), "row")
    verdicts = [
        value.change.verdict
        for row in comparison.rows
        for value in row.values
        if value is not None and value.change is not None
    ]
    counts = [f"{verdicts.count(one)} {one}" for one in dict.fromkeys(sorted(verdicts))]
    return ", ".join([f"{counted_text(len(comparison.rows), 'row')} in common", *counts])


def _footer(comparison: BenchComparison) -> str:
    made = f"Made by flatout bench compare from {counted_text(len(comparison.files), 'file')}."
    if comparison.num_tests == 0:
        return made
    return (
        f"{made} Ratios above 1 are better. Ratios of medians, with 95 % bootstrap intervals."
        f" A verdict needs an interval beyond {percent_text(LEAST_DIFFERENCE, 0)}, and a rank test"
        f" with a false discovery rate of 5 % over all {comparison.num_tests} ratios."
    )


def _warnings(comparison: BenchComparison) -> str:
    items = "".join(f"<li>{escape(text)}</li>" for text in comparison.warnings)
    return f'<ul class="warnings" aria-label="Warnings">{items}</ul>' if items else ""


def _machines(comparison: BenchComparison) -> str:
    rows = ([f.name, f.machine, f.kind, f.at, f.flatout] for f in comparison.files)
    return _table("Machines", ["", "machine", "kind", "measured at", "flatout"], rows)


def _ratios(comparison: BenchComparison) -> Iterator[str]:
    """Bars by group, for each file after the first."""
    first = comparison.files[0]
    for place, file in list(enumerate(comparison.files))[1:]:
        rows = [row for row in comparison.rows if _ratio(row, place) is not None]
        shown = rows[:_MOST_CHARTED]
        scale = charts.ratio_scale([one for row in shown if (one := _ratio(row, place))])
        yield f"<section><h2>{escape(file.name)} against {escape(first.name)}</h2>"
        if not rows:
            yield '<p class="dim">No row was measured in both.</p>'
        for group, members in groupby(_by_group(shown), key=lambda row: row.group):
            yield f"<h3>{escape(group)}</h3>"
            yield from (_ratio_row(row, place, scale) for row in members)
        if rows:
            axis = charts.ratio_axis(scale)
            yield f'<div class="row head"><span></span><span class="chart">{axis}</span>'
            yield "<span></span><span></span></div>"
        if len(rows) > len(shown):
            yield f'<p class="dim">{len(rows) - len(shown)} more in the table below.</p>'
        yield "</section>"


def _ratio_row(row: ComparedRow, place: int, scale: float) -> str:
    value = row.values[place]
    assert value is not None and value.change is not None
    change = value.change
    texts = [value_text(row, row.values[0]), value_text(row, value)]
    notes = "; ".join(filter(None, (row.note, doubt_text(value))))
    note = f'<span class="note">{escape(notes)}</span>' if notes else ""
    kind = charts.verdict_class(change.verdict)
    return (
        f'<div class="row"><span>{escape(row.label)} <span class="dim values">'
        f"{escape(' → '.join(texts))}</span></span>"
        f'<span class="chart">{charts.ratio_bar(change.ratio, change.verdict, scale)}</span>'
        f'<span class="number">{escape(ratio_text(change.ratio))}</span>'
        f'<strong class="{kind}">{escape(change.verdict)}</strong>{note}</div>'
    )


def _ratio(row: ComparedRow, place: int) -> Interval | None:
    value = row.values[place]
    return value.change.ratio if value is not None and value.change is not None else None


def _by_group(rows: Sequence[ComparedRow]) -> list[ComparedRow]:
    order = list(dict.fromkeys(row.group for row in rows))
    return sorted(rows, key=lambda row: order.index(row.group))


def _groups(comparison: BenchComparison) -> str:
    head = ["file", "group", "rows", "ratio (95 % interval)", "lowest", "highest"]
    rows = (
        [one.file, one.group, str(one.num_rows), ratio_text(one.ratio), one.lowest, one.highest]
        for one in comparison.groups
    )
    return _table("Where the differences are", head, rows)


def _parts(comparison: BenchComparison) -> str:
    head = ["workload", "part", *(file.name for file in comparison.files)]
    rows = (
        [one.workload, one.part, *map(part_text, one.seconds, one.shares)]
        for one in comparison.step_parts
    )
    return _table("What a step is made of", head, rows)


def _rooflines(files: Sequence[LoadedBench]) -> str:
    scale = charts.roofline_scale([one.file for one in files])
    if scale is None:
        return ""
    figures = [
        f"<figure><figcaption>{escape(one.name)}</figcaption>{svg}</figure>"
        for one in files
        if (svg := charts.roofline(one.file, scale))
    ]
    return (
        '<section><h2>Roofline</h2><p class="dim">Attainable FLOPs per second (upwards) by FLOPs'
        " per byte of memory traffic (to the right), both logarithmic. Dashed: the vendor's peak."
        f"</p>{''.join(figures)}</section>"
    )


def _samples(files: Sequence[LoadedBench], comparison: BenchComparison) -> Iterator[str]:
    """Every sample of every file, on one scale for each row."""
    tables = [{row.id: row for row in one.file.rows} for one in files]
    yield '<section><h2>Samples</h2><p class="dim">A dot for each, the first at the top; hollow:'
    yield " outliers, which count like all others; line: the median.</p>"
    for row in comparison.rows[:_MOST_CHARTED]:
        known = [table[row.id].samples for table in tables if row.id in table]
        together = [sample for samples in known for sample in samples]
        is_first = True
        for name, table, value in zip(comparison.files, tables, row.values, strict=True):
            if value is None or value.median is None:
                continue
            ends = (min(together), max(together))
            strip = charts.sample_strip(table[row.id].samples, ends, value.outliers)
            # The name of the row stands at its first file only.
            kind, label = ("", escape(row.label)) if is_first else (" more", "")
            is_first = False
            yield (
                f'<div class="row samples{kind}"><span>{label}</span>'
                f'<span class="dim">{escape(name.name)}</span><span class="chart">{strip}</span>'
                f'<span class="number">{escape(value_text(row, value))}'
                f' <span class="dim">({value.num_samples})</span></span></div>'
            )
    yield "</section>"


def _values(comparison: BenchComparison) -> str:
    """All values with intervals, conditions and shares of the vendor's peak."""
    head = ["row", "file", "median (95 % interval)", "of vendor", "conditions", "notes"]
    rows = []
    for row in comparison.rows:
        for file, value in zip(comparison.files, row.values, strict=True):
            if value is None:
                continue
            text = "n/a"
            if value.median is not None:
                ends = (value.median.middle, value.median.low, value.median.high)
                middle, low, high = (quantity_text(one, row.unit) for one in ends)
                text = f"{middle} [{low}, {high}]"
            of_vendor = "" if value.of_vendor is None else percent_text(value.of_vendor, 0)
            rows.append([row.id, file.name, text, of_vendor, _pairs(value.conditions),
                         doubt_text(value)])  # fmt: skip
    return _table("All values", head, rows)


def _settings(files: Sequence[LoadedBench]) -> str:
    columns = [_settings_of(one.file) for one in files]
    names = dict.fromkeys(name for column in columns for name in column)
    rows = ([name, *(column.get(name, "") for column in columns)] for name in names)
    return _table("Settings, versions and state", ["", *(one.name for one in files)], rows)


def _settings_of(file: BenchFile) -> dict[str, str]:
    facts = dict(file.settings) | {f"version of {k}": v for k, v in file.versions.items()}
    for when, state in (("at the start", file.began), ("at the end", file.ended)):
        facts |= {f"{name}, {when}": text for name, text in _state(state)}
    sources = {row.vendor_source for row in file.rows if row.vendor_source}
    return facts | ({"vendor's peaks from": "; ".join(sorted(sources))} if sources else {})


def _state(state: DeviceState) -> Iterator[tuple[str, str]]:
    clocks = {"clock": state.clock_hz, "memory clock": state.memory_clock_hz}
    yield from ((name, f"{hz / 1e6:,.0f} MHz") for name, hz in clocks.items() if hz is not None)
    powers = {"power": state.power_w, "power limit": state.power_limit_w}
    yield from ((name, f"{watts:.3g} W") for name, watts in powers.items() if watts is not None)
    if state.temperature_c is not None:
        yield "temperature", f"{state.temperature_c:.3g} °C"
    if state.throttles:
        yield "throttled by", ", ".join(state.throttles)
    if state.other_cpus is not None:
        yield "CPUs used by other programs", f"{state.other_cpus:.2g}"
    if state.is_on_battery is not None:
        yield "on battery", "yes" if state.is_on_battery else "no"


def _pairs(values: dict[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """An escaped table with a heading; nothing if there are no rows."""
    lines = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    names = "".join(f"<th>{escape(name)}</th>" for name in head)
    table = f'<div class="wide"><table><thead><tr>{names}</tr></thead>{lines}</table></div>'
    return f"<section><h2>{escape(title)}</h2>{table}</section>" if lines else ""
