"""A comparison as Markdown and as CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator

from flatout.schema.bench_comparison import BenchComparison, ComparedRow, ComparedValue, RowChange
from flatout.schema.tuning import Interval
from flatout.schema.units import count_text, percent_text, quantity_text

_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>()#|!~&$@])")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]+")
# A spreadsheet would compute what begins like this.
_FORMULA = ("=", "+", "-", "@")
_CSV_COLUMNS = (
    "id", "label", "group", "unit", "file", "median", "low", "high", "num_samples", "num_outliers",
    "drift", "of_vendor", "ratio", "ratio_low", "ratio_high", "p_value", "verdict", "why", "unread",
)  # fmt: skip


def ratio_text(ratio: Interval) -> str:
    """A ratio with its 95 % interval: "x1.08 [1.05, 1.11]"; alone if it has none."""
    if ratio.low == ratio.high:
        return f"x{_short(ratio.middle)}"
    return f"x{_short(ratio.middle)} [{_short(ratio.low)}, {_short(ratio.high)}]"


def value_text(row: ComparedRow, value: ComparedValue | None) -> str:
    """The median of one file, or why there is none."""
    if value is None:
        return "-"
    return quantity_text(value.median.middle, row.unit) if value.median else "n/a"


def doubt_text(value: ComparedValue | None) -> str:
    """Doubts about a value or its ratio; empty if there are none."""
    if value is None:
        return ""
    parts = [value.unread, value.change.why if value.change else None]
    if value.outliers:
        parts.append(f"outliers: {count_text(len(value.outliers))} of {value.num_samples}")
    if value.drift is not None:
        parts.append(f"drifted by {100 * value.drift:+.0f} %")
    return "; ".join(part for part in parts if part)


def markdown(comparison: BenchComparison) -> str:
    """Tables for an issue or a wiki."""
    lines = ["# flatout bench compare", ""]
    for file in comparison.files:
        lines.append(f"- **{_md(file.name)}**: {_md(f'{file.kind}, {file.at}, {file.machine}')}")
    for place in range(1, len(comparison.files)) or (0,):
        lines += ["", *_row_lines(comparison, place)]
    if comparison.groups:
        lines += ["", "| file | group | rows | ratio (95 % interval) |", "|---|---|---:|---|"]
        lines += [
            f"| {_md(one.file)} | {one.group} | {one.num_rows} | {ratio_text(one.ratio)} |"
            for one in comparison.groups
        ]
    if comparison.step_parts:
        lines += ["", _table_head("workload", "part", *(f.name for f in comparison.files))]
        for part in comparison.step_parts:
            seconds = [part_text(*one) for one in zip(part.seconds, part.shares, strict=True)]
            lines.append(_table_line(part.workload, part.part, *seconds))
    if comparison.differing:
        lines += ["", _table_head("differs", *(file.name for file in comparison.files))]
        lines += [
            _table_line(one.name, *("unknown" if v is None else v for v in one.values))
            for one in comparison.differing
        ]
    lines += ["", *(f"> **warning:** {_md(text)}\n" for text in comparison.warnings)]
    return "\n".join(lines).rstrip() + "\n"


def part_text(seconds: float | None, share: float | None) -> str:
    """A part of a step, and its share of the difference to the first file."""
    if seconds is None:
        return "unknown"
    text = quantity_text(seconds, "s")
    return text if share is None else f"{text} ({percent_text(share, 0)} of the difference)"


def csv_text(comparison: BenchComparison) -> str:
    """A line for each row and file, numbers in base units."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_CSV_COLUMNS)
    for row in comparison.rows:
        for file, value in zip(comparison.files, row.values, strict=True):
            if value is not None:
                head = [row.id, row.label, row.group, row.unit, file.name]
                writer.writerow([_cell(one) for one in (*head, *_csv_values(value))])
    return out.getvalue()


def _csv_values(value: ComparedValue) -> Iterator[object]:
    yield from _interval_cells(value.median)
    yield from (value.num_samples, len(value.outliers), value.drift, value.of_vendor)
    change: RowChange | None = value.change
    yield from _interval_cells(change.ratio if change else None)
    yield from (change.p_value, change.verdict, change.why) if change else (None, None, None)
    yield value.unread


def _interval_cells(interval: Interval | None) -> tuple[float | None, ...]:
    return (interval.middle, interval.low, interval.high) if interval else (None,) * 3


def _cell(value: object) -> object:
    if not isinstance(value, str):
        return value
    text = _CONTROL.sub(" ", value)
    return f"'{text}" if text.lstrip().startswith(_FORMULA) else text


def _row_lines(comparison: BenchComparison, place: int) -> Iterator[str]:
    first, other = comparison.files[0], comparison.files[place]
    if place == 0:
        yield _table_head("row", first.name, "of vendor", "notes")
    else:
        yield _table_head(
            "row", first.name, other.name, "ratio (95 % interval)", "verdict", "notes"
        )
    for row in comparison.rows:
        value = row.values[place]
        cells = [value_text(row, row.values[0])]
        if place == 0:
            of_vendor = value.of_vendor if value else None
            cells.append("" if of_vendor is None else percent_text(of_vendor, 0))
        else:
            change = value.change if value else None
            cells.append(value_text(row, value))
            cells += [ratio_text(change.ratio), change.verdict] if change else ["", ""]
        notes = "; ".join(filter(None, (row.note, doubt_text(value))))
        yield _table_line(f"{row.group}: {row.label}", *cells, notes)


def _table_head(*names: str) -> str:
    return f"{_table_line(*names)}\n|{'---|' * len(names)}"


def _table_line(*cells: str) -> str:
    return f"| {' | '.join(_md(cell) for cell in cells)} |"


def _md(text: str) -> str:
    return _MARKDOWN.sub(r"\\\1", _CONTROL.sub(" ", text))


def _short(ratio: float) -> str:
    if ratio >= 100:
        return f"{ratio:,.0f}"
    return f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.2g}"
