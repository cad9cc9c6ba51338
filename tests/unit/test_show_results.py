"""What `show` prints of classes and samples: calm, within 80 columns, and harmless."""

from __future__ import annotations

import io
import re

import pytest
from rich.cells import cell_len
from rich.console import Console

from flatout.cli.render.show_results import print_results
from flatout.schema.class_report import Results
from flatout.schema.run_lines import Classified, Generated


def shown(results: Results, width: int = 80) -> str:
    file = io.StringIO()
    console = Console(file=file, width=width, highlight=False, markup=False, emoji=False)
    print_results(console, results, "images")
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def classes(labels: list[str], counts: list[tuple[int, int, int]]) -> Results:
    line = Classified(
        at=0.0, step=1200, epoch=0, name="kinds", labels=tuple(labels), counts=tuple(counts)
    )
    return Results(confusions=(line,), samples=None)


def texts(*given: str) -> Results:
    samples = Generated(at=0.0, step=1200, epoch=0, texts=given)
    return Results(confusions=(), samples=samples)


def many(num_classes: int) -> Results:
    """Class n has n wrong samples of 1,000, taken for the class before."""
    wrong = [(one, one - 1, one) for one in range(1, num_classes)]
    right = [(one, one, 1000 - one) for one in range(num_classes)]
    return classes([f"a class with the number {one}" for one in range(num_classes)], right + wrong)


# Nothing is made up for what is not there; the means are over cat and owl.
FEW = """
kinds (1,013 images, step 1,200)
  class             samples  precision  recall      F1
  cat                 1,002     99.6 %  99.8 %  99.7 %
  dog                     0      0.0 %       -   0.0 %
  owl                    11          -   0.0 %   0.0 %
  macro average                 49.8 %  49.9 %  49.9 %
  weighted average              98.5 %  98.7 %  98.6 %

  rows: true class; columns: predicted
         cat  dog  owl
  cat  1,000    2    .
  dog      .    .    .
  owl      4    7    .
"""


def test_few_classes_are_shown_with_their_matrix() -> None:
    counts = [(0, 0, 1000), (0, 1, 2), (2, 0, 4), (2, 1, 7)]
    assert shown(classes(["cat", "dog", "owl"], counts)) == FEW.rstrip()


@pytest.mark.parametrize(
    "results",
    [
        many(2), many(12), many(13), many(300), classes(["猫" * 40, "b"], [(0, 1, 10**7)]),
        classes([""] * 12, [(one, one, 10**6) for one in range(12)]),
        texts("word " * 99, "x" * 300, "a\tb"),
    ],
    ids=range(7),
)  # fmt: skip
def test_nothing_is_wider_than_80_columns(results: Results) -> None:
    for width in (80, 10_000):
        assert max(cell_len(line) for line in shown(results, width).splitlines()) <= 80


def test_of_many_classes_the_worst_and_the_most_frequent_mistakes_are_shown() -> None:
    text = shown(many(300))
    lines = text.splitlines()
    assert lines[1] == "kinds (the worst 10 of 300, 300,000 images, step 1,200)"
    assert re.search(r"^  a class with the numb… +1,000 +70.1 % +70.2 % +70.2 %$", text, re.M)
    assert len(lines) < 30
    mistakes = lines[lines.index("  most frequent mistakes") + 2 :]
    assert len(mistakes) == 8
    assert mistakes[0].split()[-3:] == ["299", "29.9", "%"]
    assert "columns: predicted" not in text


def test_labels_over_a_matrix_are_cut_no_shorter_than_the_room() -> None:
    lines = shown(classes(["inside a house", "outside of it"], [(0, 1, 3)])).splitlines()
    assert lines[-3].split("  ")[-2:] == ["inside a house", "outside of it"]
    five = [f"class number {one}" for one in range(5)]
    heads = shown(classes(five, [(0, 1, 3)])).splitlines()[-6]
    assert heads.split("  ")[-5:] == ["class num…"] * 5


def test_classes_without_any_samples_are_no_error() -> None:
    text = shown(classes(["cat", "dog"], []))
    assert "kinds (0 images, step 1,200)" in text
    assert text.count("-") == 12


def test_samples_are_shown_in_part() -> None:
    text = shown(texts("\n".join(f"line {n}" for n in range(40)), "two", "three", "four", "five"))
    assert text.splitlines()[1] == "samples (step 1,200)"
    assert "line 11" in text and "line 12" not in text and "  ..." in text
    assert "three" in text and "four" not in text and "(2 more: --json)" in text
    assert shown(texts()) == ""


def test_what_a_terminal_would_obey_is_not_printed() -> None:
    assert "\x1b" not in shown(texts("\x1b[2J gone \x07"))
    assert "\x1b" not in shown(classes(["\x1b[31mred", "a\nb"], [(0, 1, 3)]))
