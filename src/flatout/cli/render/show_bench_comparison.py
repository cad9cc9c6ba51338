"""Output of `flatout bench compare`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from flatout.bench.table_texts import ratio_text, value_text
from flatout.cli.render import show, wording
from flatout.cli.render.tables import plain_table
from flatout.schema.bench_comparison import BenchComparison, ComparedRow, ComparedValue
from flatout.schema.units import counted_text, percent_text, seconds_text

_STYLES = {
    "faster": "green", "better": "green", "slower": "red", "worse": "red", "cannot tell": "dim",
}  # fmt: skip
_NUM_DIFFERING = _NUM_WARNINGS = 12
_LONGEST_NAME, _LONGEST_VALUE, _LONGEST_WARNING = 24, 80, 400


def print_comparison(
    comparison: BenchComparison, html: str | None, command: str | None = None
) -> None:
    """Machines, a table for each file after the first, groups, what differs, warnings.

    command: that printed it, without --html; None for `flatout bench compare` of these files.
    """
    console = show.make_console()
    show.print_lines(console, [
        (one.name, f"{one.kind}{wording.DOT}{one.at[:16]}{wording.DOT}{one.machine}")
        for one in comparison.files
    ])  # fmt: skip
    for place in range(1, len(comparison.files)) or (0,):
        console.print()
        _print_rows(console, comparison, place)
    unread = _unread(comparison) if len(comparison.files) == 1 else []
    if unread:
        console.print()
        show.print_lines(console, unread)
    if comparison.groups:
        console.print(Text("\nwhere the differences are", "bold"))
        console.print(_group_table(comparison))
    if comparison.step_parts:
        difference = " (and its difference)" if len(comparison.files) > 1 else ""
        console.print(Text(f"\nwhat a step is made of{difference}", "bold"))
        console.print(_part_table(comparison))
    if comparison.differing:
        console.print(Text("\nwhat differs", "bold"))
        _print_differing(console, comparison)
    if comparison.warnings:
        console.print()
        shown = list(comparison.warnings[:_NUM_WARNINGS])
        if len(comparison.warnings) > len(shown):
            shown.append(f"{len(comparison.warnings) - len(shown)} more: --json")
        show.print_lines(console, [("warning", text[:_LONGEST_WARNING]) for text in shown])
    console.print()
    _print_next(console, comparison, html, command)


def _print_rows(console: Console, comparison: BenchComparison, place: int) -> None:
    """A table; where it is too wide, the label of each row is above its values."""
    first, other = comparison.files[0], comparison.files[place]
    heads = [first.name, *(["of vendor"] if _has_peaks(comparison) else [])]
    if place > 0:
        heads = [first.name, other.name, "ratio", ""]
    rows = [
        row for row in _by_group(comparison) if row.values[place] is not None and _is_measured(row)
    ]
    cells = {row.id: _cells(row, place)[: len(heads)] for row in rows}
    columns = list(zip(*cells.values(), strict=True))
    widths = [max(cell_len(str(cell)) for cell in column) for column in columns]
    labels = max((cell_len(row.label) for row in rows), default=0)
    full = [max(width, cell_len(head)) for width, head in zip(widths, heads, strict=False)]
    is_too_wide = 2 + labels + sum(width + 2 for width in full) > console.width
    indent = 4 if is_too_wide else labels + 4
    widths = widths if is_too_wide else full
    _print_cells(console, " " * indent, heads, widths, "dim")
    for group, members in groupby(rows, key=lambda row: row.group):
        console.print(Text(group, "bold"))
        for row in members:
            label = f"  {row.label}"
            if is_too_wide:
                console.print(Text(label), soft_wrap=True)
                label = ""
            _print_cells(console, label.ljust(indent), cells[row.id], widths)


def _print_cells(
    console: Console,
    start: str,
    cells: Sequence[Text | str],
    widths: Sequence[int],
    style: str = "",
) -> None:
    line = Text(start, style)
    for cell, width in zip(cells, widths, strict=False):
        text = Text(cell) if isinstance(cell, str) else cell.copy()
        text.truncate(width, overflow="ellipsis", pad=True)
        line.append_text(text).append("  ")
    line.rstrip()
    console.print(line, soft_wrap=True)


def _is_measured(row: ComparedRow) -> bool:
    """In one of the files; what none has is in the report, with the reason."""
    return any(value is not None and value.median is not None for value in row.values)


def _has_peaks(comparison: BenchComparison) -> bool:
    return any(
        value is not None and value.of_vendor is not None
        for row in comparison.rows
        for value in row.values
    )


def _unread(comparison: BenchComparison) -> list[tuple[str, str]]:
    """What a single file lacks, by reason."""
    reasons: dict[str, list[str]] = {}
    for row in comparison.rows:
        value = row.values[0]
        if value is not None and value.unread is not None:
            reasons.setdefault(value.unread, []).append(row.label)
    return [("unread", f"{'; '.join(labels)}: {reason}") for reason, labels in reasons.items()]


def _cells(row: ComparedRow, place: int) -> list[Text | str]:
    value = row.values[place]
    assert value is not None
    cells: list[Text | str] = [value_text(row, row.values[0])]
    if place == 0:
        return [*cells, "" if value.of_vendor is None else percent_text(value.of_vendor)]
    cells.append(value_text(row, value))
    if value.change is None:
        return [*cells, "", _mark(row, value)]
    verdict = value.change.verdict
    text = Text(verdict + _mark(row, value), _STYLES[verdict])
    return [*cells, ratio_text(value.change.ratio), text]


def _mark(row: ComparedRow, value: ComparedValue) -> str:
    """Where the report has more to say."""
    has_more = row.note or value.unread or value.outliers or value.drift is not None
    return "*" if has_more else ""


def _by_group(comparison: BenchComparison) -> list[ComparedRow]:
    order = list(dict.fromkeys(row.group for row in comparison.rows))
    return sorted(comparison.rows, key=lambda row: order.index(row.group))


def _group_table(comparison: BenchComparison) -> Table:
    is_pair = len(comparison.files) == 2
    table = Table.grid(padding=(0, 2))
    for one in comparison.groups:
        name = [] if is_pair else [one.file]
        rows = counted_text(one.num_rows, "row")
        table.add_row(f"  {one.group}", *name, ratio_text(one.ratio), Text(rows, "dim"))
    return table


def _part_table(comparison: BenchComparison) -> Table:
    table = plain_table("  workload", "part", *(file.name for file in comparison.files))
    for one in comparison.step_parts:
        texts = map(_part_text, one.seconds, one.shares)
        table.add_row(f"  {one.workload}", one.part, *texts)
    return table


def _part_text(seconds: float | None, share: float | None) -> str:
    text = "unknown" if seconds is None else seconds_text(seconds)
    return text if share is None else f"{text} ({percent_text(share, 0)})"


def _print_differing(console: Console, comparison: BenchComparison) -> None:
    shown = comparison.differing[:_NUM_DIFFERING]
    lines = [
        (
            f"  {one.name[:_LONGEST_NAME]}",
            " / ".join((v or "-")[:_LONGEST_VALUE] for v in one.values),
        )
        for one in shown
    ]
    if len(comparison.differing) > len(shown):
        lines.append(("  ...", f"{len(comparison.differing) - len(shown)} more: --json"))
    show.print_lines(console, lines)


def _print_next(
    console: Console, comparison: BenchComparison, html: str | None, command: str | None
) -> None:
    is_marked = any(
        _mark(row, value)
        for row in comparison.rows
        for value in row.values[1:]
        if value is not None and _is_measured(row)
    )
    if is_marked:
        show.print_lines(console, [("notes", "marked *: see --md, --json or the report")])
    if html is not None:
        show.print_lines(console, [("report", wording.near_text(html))])
    else:
        names = " ".join(wording.near_text(file.path) for file in comparison.files)
        command = command or f"flatout bench compare {names}"
        show.print_command(console, "report", f"{command} --html report.html")
