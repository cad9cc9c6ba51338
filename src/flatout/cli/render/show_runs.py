"""Runs in a list and side by side, as wide as the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from rich.console import Console
from rich.table import Table
from rich.text import Text

from flatout.cli.render import show, wording
from flatout.cli.render.tables import plain_table
from flatout.runs.model.comparison import Comparison, ComparisonRow
from flatout.runs.model.listed import ListedRun, RunRemoval
from flatout.schema.run import DamagedRun, Run
from flatout.schema.suggested_command import typed_value
from flatout.schema.units import bytes_text, count_text, seconds_text

_GAP = 2
# A column of parameters that is narrower than this says nothing.
_LEAST_PARAMETERS = 16
# Longest cell of a comparison on a terminal.
_LONGEST_CELL = 28

# Of a list, in the order in which they are shown.
_COLUMNS: dict[str, Callable[[ListedRun, Run], str]] = {
    "experiment": lambda row, run: run.header.spec.name,
    "status": lambda row, run: run.status,
    "epochs": lambda row, run: wording.epochs_text(run),
    "best": lambda row, run: wording.listed_metric(row.metrics),
    "time": lambda row, run: "" if row.duration_s is None else seconds_text(row.duration_s),
    "created": lambda row, run: wording.time_text(run.header.created_at),
    "parameters": lambda row, run: " ".join(_settings(row)),
}
# What goes first where there is no room for all; parameters are shortened before.
_DROPPED_FIRST = ("experiment", "created", "epochs", "parameters", "time", "best")


def print_runs(rows: Sequence[ListedRun], *, is_filtered: bool) -> None:
    """A line for each run."""
    if not rows:
        show.print_note(
            "no run matches; to list all: flatout runs" if is_filtered
            else "no runs yet; start one: flatout train digits"
        )  # fmt: skip
        return
    console = show.make_console()
    cells = [_cells(row) for row in rows]
    names = _fitting(cells, console.width)
    table = plain_table()
    for name in names:
        table.add_column(name, no_wrap=True, overflow="ellipsis")
    room = console.width - sum(_width(name, cells) + _GAP for name in names[:-1])
    for row, line in zip(rows, cells, strict=True):
        texts = [
            _shortened(_settings(row), room) if name == "parameters" else line[name]
            for name in names
        ]
        table.add_row(*(
            show.status_text(text) if name == "status" else Text(text)
            for name, text in zip(names, texts, strict=True)
        ))  # fmt: skip
    console.print(table)
    beside = show.make_console(is_error=True)
    for row in rows:
        if isinstance(row.run, DamagedRun):
            show.print_lines(beside, [(f"{row.run.id}:", row.run.because)])
            show.print_note(f"  fix: {row.run.fix}")


def print_removals(removals: Sequence[RunRemoval]) -> None:
    """Prints the runs that will be deleted, with their size, on stderr."""
    console = show.make_console(is_error=True)
    if not removals:
        show.print_note("no run has failed")
        return
    width = max(len(removal.id) for removal in removals)
    for removal in removals:
        of = f"link to {removal.target}" if removal.target else bytes_text(removal.num_bytes)
        console.print(f"{removal.id:<{width}}  {of:>9}  {removal.folder}", soft_wrap=True)
        if removal.checkpoint_step is not None:
            text = f"could be resumed from step {count_text(removal.checkpoint_step)}"
            console.print(f"{'':<{width}}  {text}", soft_wrap=True)


def print_comparison(comparison: Comparison) -> None:
    """Runs side by side; on a terminal that is too narrow for all, some below the others."""
    console = show.make_console()
    texts = {id(row): _values(row, console) for row in comparison.rows}
    label = max([0, *(len(f"  {wording.plain_name(row.name)}") for row in comparison.rows)])
    widths = [
        max([len(name), *(len(cells[number]) for cells in texts.values())])
        for number, name in enumerate(comparison.runs)
    ]
    for block in _blocks(widths, console.width - label):
        if block[0]:
            console.print()
        console.print(_block(comparison, texts, block))


def _block(comparison: Comparison, texts: dict[int, list[str]], block: Sequence[int]) -> Table:
    table = plain_table()
    table.add_column("", no_wrap=True)
    for number in block:
        table.add_column(comparison.runs[number], no_wrap=True, overflow="ellipsis")
    for section, rows in groupby(comparison.rows, key=lambda row: row.section):
        table.add_row(Text(section, "bold"))
        for row in rows:
            cells = [Text(texts[id(row)][number]) for number in block]
            table.add_row(f"  {wording.plain_name(row.name)}", *cells)
    return table


def _blocks(widths: Sequence[int], room: int) -> Iterator[list[int]]:
    """Numbers of the columns that fit next to each other; at least one in each block."""
    block: list[int] = []
    used = 0
    for number, width in enumerate(widths):
        if block and used + _GAP + width > room:
            yield block
            block, used = [], 0
        block.append(number)
        used += _GAP + width
    if block:
        yield block


def _values(row: ComparisonRow, console: Console) -> list[str]:
    cells = [wording.value_text(row.name, value) for value in row.values]
    if not console.is_terminal:
        return cells
    return [_middle_left_out(cell, _LONGEST_CELL) for cell in cells]


def _middle_left_out(text: str, width: int) -> str:
    """A path is known by its end, a name by its beginning."""
    if len(text) <= width:
        return text
    half = (width - 1) // 2
    return f"{text[: width - 1 - half]}…{text[-half:]}"


def _cells(row: ListedRun) -> dict[str, str]:
    run = row.run
    if isinstance(run, DamagedRun):
        return {"run": run.id} | dict.fromkeys(_COLUMNS, "") | {"status": run.status}
    return {"run": run.id} | {name: text(row, run) for name, text in _COLUMNS.items()}


def _settings(row: ListedRun) -> list[str]:
    return [f"{name}={typed_value(row.parameters[name])}" for name in row.changed]


def _shortened(pairs: Sequence[str], room: int) -> str:
    """As many of the pairs as there is room for, none of them cut but the first."""
    text = " ".join(pairs)
    for number in range(len(pairs) - 1, 0, -1):
        if len(text) <= room:
            break
        text = f"{' '.join(pairs[:number])} …"
    return text


def _fitting(cells: Sequence[dict[str, str]], width: int) -> list[str]:
    names = [
        name for name in ("run", *_COLUMNS) if name == "run" or any(line[name] for line in cells)
    ]
    # The run's name contains its experiment, unless given by hand.
    for name in _DROPPED_FIRST:
        # The longest pair alone is shown whole; if it does not fit, it is the one that is cut.
        least = sum(
            _GAP + (min(_LEAST_PARAMETERS, _width(name, cells)) if name == "parameters"
                    else _width(name, cells))
            for name in names
        ) - _GAP  # fmt: skip
        if least <= width:
            break
        if name in names:
            names.remove(name)
    return names


def _width(name: str, cells: Sequence[dict[str, str]]) -> int:
    return max(len(name), *(len(line[name]) for line in cells))
