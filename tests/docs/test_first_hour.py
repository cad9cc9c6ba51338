"""The first commands of a new user, on a terminal of 80 columns: they work, and lines fit."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script that plays the hour."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("first_hour")


def test_first_commands_work_and_fit_80_columns(benchmark: Any, tmp_path: Path) -> None:
    hour = benchmark.Hour(tmp_path / "place")
    commands = (
        ["--help"], ["train", "--help"], [], ["train", "digits", "--epochs", "1"], ["show", "last"],
        ["show", "last", "--recipe"], ["runs"], ["doctor"], ["evaluate", "last"],
        ["new", "mine", "--yes"], ["data", "list"], ["disk"],
    )  # fmt: skip
    for words in commands:
        hour.run(*words)
    words = benchmark.known_words([*(ROOT / "src/flatout").rglob("*.py")])
    assert benchmark.faults(hour.played, words) == []


def test_tour_is_that_of_readme(benchmark: Any) -> None:
    tour = list(benchmark.tour_of((ROOT / "README.md").read_text(encoding="utf-8")))
    commands = [text for name, text in tour if name == "command"]
    assert commands[0].startswith("train digits") and commands[1].startswith("show tour")
    assert [name for name, _ in tour if name != "command"] == ["line.py"]


def test_broken_words_are_found(benchmark: Any) -> None:
    line = "x" * 70 + " allocat"
    assert benchmark.broken_words([line, "  or of memory"], {"allocator", "of"}) == ["allocat/or"]
    assert benchmark.broken_words([line, "  or of memory"], {"allocat", "or"}) == []
    assert benchmark.too_long(["y" * 81]) and not benchmark.too_long(["    flatout " + "y" * 90])


def test_screen_shows_what_stands_when_lines_are_drawn_over(benchmark: Any) -> None:
    screen = importlib.import_module("support.terminal").Screen()
    screen.take("first\r\n\x1b[1mold\x1b[0m line\r\n\x1b[1A\x1b[2K\x1b[32mnew\x1b[0m\r\nlast")
    assert screen.text() == ("first", "new", "last")
    assert screen.ansi()[1].startswith("\x1b[32mn")
