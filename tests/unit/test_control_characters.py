"""What comes from files cannot steer the terminal."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.live import Live
from rich.table import Table
from rich.text import Text

from flatout.cli.render.control_characters import VisibleConsole, visible


@pytest.mark.parametrize("hostile", [
    "a\x1b[2Jb", "a\x1b\x1b[2J[2Jb", "a\x9b2Jb", "a\x07b", "a\rb", "a\x7fb", "a\u202eb",
    "a\x1b]52;c;aGk=\x07b",
])  # fmt: skip
def test_no_control_character_reaches_the_terminal(hostile: str) -> None:
    file = io.StringIO()
    console = VisibleConsole(file=file, width=80, markup=False)
    table = Table("name")
    table.add_row(hostile)
    for shown in (hostile, Text(hostile, "bold"), table):
        console.print(shown)
    assert all(sign.isprintable() or sign == "\n" for sign in file.getvalue())
    assert file.getvalue().count("b\n") == 2


def test_colours_of_its_own_stay() -> None:
    file = io.StringIO()
    console = VisibleConsole(file=file, force_terminal=True, color_system="standard")
    console.print(Text("a\x1b[2J", "red"))
    assert file.getvalue() == "\x1b[31ma\N{SYMBOL FOR ESCAPE}[2J\x1b[0m\n"


def test_live_displays_are_cleaned() -> None:
    file = io.StringIO()
    console = VisibleConsole(file=file, force_terminal=True, color_system=None)
    with Live("", console=console, auto_refresh=False) as live:
        live.update(Text("a\x1b[2Jb"), refresh=True)
    assert "\x1b[2J" not in file.getvalue() and "\N{SYMBOL FOR ESCAPE}[2J" in file.getvalue()


def test_visible_keeps_lines_and_tabs() -> None:
    assert visible("a\tb\nä 字") == "a\tb\nä 字"


def test_show_of_a_run_with_escapes_in_its_files(trained: Any) -> None:
    header = trained.runs / "mine-0001/run.json"
    run = json.loads(header.read_text())
    run["spec"]["name"] = "x\x1b[2Jy"
    header.write_text(json.dumps(run))
    done = trained.run("runs")
    assert "\x1b" not in done.stdout + done.stderr
    assert "x\N{SYMBOL FOR ESCAPE}[2Jy" in done.stdout
