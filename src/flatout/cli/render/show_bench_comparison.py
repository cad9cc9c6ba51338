"""Output of `flatout bench compare`."""

from __future__ import annotations

from itertools import groupby

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from flatout.bench.table_texts import doubt_text, part_text, ratio_text, value_text
from flatout.cli.render import show, wording
from flatout.cli.render.tables import plain_table
from flatout.schema.bench_comparison import BenchComparison, ComparedRow
from flatout.schema.units import counted_text, percent_text

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
        console.print(_row_table(comparison, place))
    if comparison.groups:
        console.print(Text("\nwhere the differences are", "bold"))
        console.print(_group_table(comparison))
    if comparison.step_parts:
        console.print(Text("\nwhat a step is made of", "bold"))
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


def _row_table(comparison: BenchComparison, place: int) -> Table:
    first, other = comparison.files[0], comparison.files[place]
    heads = (first.name, "of vendor") if place == 0 else (first.name, other.name, "ratio", "")
    table = plain_table("", *heads)
    for column in table.columns[1:]:
        column.no_wrap = True
        column.overflow = "ellipsis"
    for group, rows in groupby(_by_group(comparison), key=lambda row: row.group):
        table.add_row(Text(group, "bold"))
        for row in rows:
            if row.values[place] is not None:
                label = Padding(Text(row.label), (0, 0, 0, 2))
                table.add_row(label, *_cells(row, place))
    return table


def _cells(row: ComparedRow, place: int) -> list[Text | str]:
    value = row.values[place]
    assert value is not None
    cells: list[Text | str] = [value_text(row, row.values[0])]
    if place == 0:
        shown = value.unread or ("" if value.of_vendor is None else percent_text(value.of_vendor))
        return [*cells, shown]
    cells.append(value_text(row, value))
    if value.change is None:
        return [*cells, "", "*" if value.unread else ""]
    verdict = value.change.verdict
    mark = "*" if row.note or value.outliers or value.drift is not None else ""
    return [*cells, ratio_text(value.change.ratio), Text(verdict + mark, _STYLES[verdict])]


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
        texts = map(part_text, one.seconds, one.shares)
        table.add_row(f"  {one.workload}", one.part, *texts)
    return table


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
    if any(doubt_text(value) for row in comparison.rows for value in row.values):
        show.print_lines(console, [("notes", "marked *: see --md, --json or the report")])
    if html is not None:
        show.print_lines(console, [("report", wording.near_text(html))])
    else:
        names = " ".join(wording.near_text(file.path) for file in comparison.files)
        command = command or f"flatout bench compare {names}"
        show.print_command(console, "report", f"{command} --html report.html")
