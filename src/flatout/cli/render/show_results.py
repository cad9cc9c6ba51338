"""Output of a run's results: the classes of a classifier, its most frequent mistakes, samples."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from flatout.cli.render.tables import plain_table
from flatout.schema.class_report import ClassReport, ClassScores, MeanScores, Results
from flatout.schema.run_lines import Classified, Generated
from flatout.schema.units import count_text, percent_text

# With more classes, only the worst are shown.
_ALL_CLASSES = 20
_NUM_WORST = 10
_NUM_MISTAKES = 8
_MATRIX_CLASSES = 12
_WIDTH = 80
_LABEL_WIDTH = 24
_COLUMN_WIDTH = 6
_NUM_TEXTS = 3
_TEXT_LINES = 12


def print_results(console: Console, results: Results, unit: str) -> None:
    """Classes and samples, where there are any. unit: what a sample of the data is."""
    for line, report in zip(results.confusions, results.reports, strict=True):
        _print_classes(console, line, report, unit)
    if results.samples and results.samples.texts:
        _print_samples(console, results.samples)


def _print_classes(console: Console, line: Classified, report: ClassReport, unit: str) -> None:
    what = f"{count_text(report.num_samples)} {unit}, step {count_text(report.step)}"
    if len(report.classes) > _ALL_CLASSES:
        what = f"the worst {_NUM_WORST} of {count_text(len(report.classes))}, {what}"
    console.print()
    console.print(Text.assemble((line.name, "bold"), f" ({what})"), soft_wrap=True)
    console.print(_class_table(report))
    matrix = _matrix(line, min(_WIDTH, console.width))
    if matrix is not None:
        console.print("\n  rows: true class; columns: predicted", style="dim")
        console.print(matrix)
    elif report.mistakes:
        console.print("\n  most frequent mistakes", style="dim")
        console.print(_mistake_table(report))


def _class_table(report: ClassReport) -> Table:
    table = plain_table("  class", "samples", "precision", "recall", "F1")
    for column in table.columns[1:]:
        column.justify = "right"
    is_all = len(report.classes) <= _ALL_CLASSES
    for scores in report.classes if is_all else report.worst[:_NUM_WORST]:
        table.add_row(_label("  " + scores.label), count_text(scores.num_samples), *_ratios(scores))
    for name, means in (("macro average", report.macro), ("weighted average", report.weighted)):
        table.add_row(Text(f"  {name}", "dim"), "", *_ratios(means))
    return table


def _ratios(scores: ClassScores | MeanScores) -> list[str]:
    values = (scores.precision, scores.recall, scores.f1)
    return ["-" if value is None else percent_text(value) for value in values]


def _matrix(line: Classified, width: int) -> Table | None:
    """The counts as a table; None where it is too wide to be read."""
    num_classes = len(line.labels)
    if num_classes > _MATRIX_CLASSES:
        return None
    cells = [["."] * num_classes for _ in line.labels]
    for true, predicted, count in line.counts:
        cells[true][predicted] = count_text(count)
    rows = [_label("  " + label) for label in line.labels]
    heads = _heads(line.labels, cells, width - max(row.cell_len for row in rows) - 2)
    if heads is None:
        return None
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("")
    for head in heads:
        table.add_column(head, justify="right")
    for number, row in enumerate(rows):
        right = [Text(cell, "" if column == number else "dim" if cell == "." else "yellow")
                 for column, cell in enumerate(cells[number])]  # fmt: skip
        table.add_row(row, *right)
    return table


def _heads(labels: Sequence[str], cells: list[list[str]], room: int) -> list[Text] | None:
    """The columns' labels, cut no shorter than they must be; None where they do not fit at all."""
    numbers = [max(len(row[column]) for row in cells) for column in range(len(labels))]
    for most in range(_LABEL_WIDTH, _COLUMN_WIDTH - 1, -1):
        heads = [_label(label, most) for label in labels]
        taken = (
            max(head.cell_len, number) + 2 for head, number in zip(heads, numbers, strict=True)
        )
        if sum(taken) <= room:
            return heads
    return None


def _mistake_table(report: ClassReport) -> Table:
    table = plain_table("  class", "taken for", "samples", "of class")
    for column in table.columns[2:]:
        column.justify = "right"
    for mistake in report.mistakes[:_NUM_MISTAKES]:
        share, count = percent_text(mistake.share), count_text(mistake.num_samples)
        table.add_row(_label("  " + mistake.label), _label(mistake.predicted), count, share)
    return table


def _print_samples(console: Console, samples: Generated) -> None:
    console.print()
    console.print(
        Text.assemble(("samples", "bold"), f" (step {count_text(samples.step)})"), soft_wrap=True
    )
    for number, text in enumerate(samples.texts[:_NUM_TEXTS]):
        if number:
            console.print()
        lines = _shown_lines(console, text)
        for line in lines[:_TEXT_LINES]:
            console.print(Text("  " + line), soft_wrap=True)
        if len(lines) > _TEXT_LINES:
            console.print("  ...", style="dim")
    hidden = len(samples.texts) - _NUM_TEXTS
    if hidden > 0:
        console.print(f"  ({hidden} more: --json)", style="dim")


def _shown_lines(console: Console, text: str) -> Sequence[str]:
    """Lines that fit; outer empty lines are left out."""
    width = min(_WIDTH, console.width) - 2
    wrapped = Text(_harmless(text).strip("\n")).wrap(console, width, tab_size=4)
    return [line.plain.rstrip() for line in wrapped]


def _label(text: str, width: int = _LABEL_WIDTH) -> Text:
    label = Text(_harmless(text).replace("\n", " "))
    label.truncate(width, overflow="ellipsis")
    return label


def _harmless(text: str) -> str:
    """Without what a terminal would take for a command."""
    return "".join(
        letter if letter.isprintable() or letter in "\n\t" else "\ufffd" for letter in text
    )
