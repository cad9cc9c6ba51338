"""The picture at the top of README: the first commands of its tour, as a terminal shows them.

    python3 benchmarks/tour_picture.py [--output docs/tour.svg]

Plays them in an empty home, on a terminal of 80 columns, and writes the screen as SVG. POSIX only.
"""

from __future__ import annotations

import argparse
import io
import re
import shlex
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from first_hour import ROOT, Hour, tour_of
from support.terminal import COLUMNS, Played

# The rest of a long answer is left out.
MOST_LINES = 26
NUM_COMMANDS = 2


def drawn(played: list[Played]) -> str:
    """The commands and their output, as SVG."""
    console = Console(
        record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True,
        color_system="standard", highlight=False,
    )  # fmt: skip
    for number, one in enumerate(played):
        if number:
            console.print()
        console.print(Text.assemble(("$ ", "green"), (one.command, "bold")))
        for line in one.ansi[:MOST_LINES]:
            console.print(Text.from_ansi(line))
        if len(one.ansi) > MOST_LINES:
            console.print("...", style="dim")
    # A picture loads nothing: its fonts would come from another server.
    svg = console.export_svg(title="flatout")
    return re.sub(r"\s*@font-face \{.*?\n\s*\}", "", svg, flags=re.DOTALL)


def main() -> int:
    """Plays the commands and writes the picture."""
    parser = argparse.ArgumentParser(description="The picture at the top of README.")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "tour.svg")
    options = parser.parse_args()
    tour = tour_of((ROOT / "README.md").read_text(encoding="utf-8"))
    commands = [text for name, text in tour if name == "command"][:NUM_COMMANDS]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        hour = Hour(Path(place))
        played = [hour.run(*shlex.split(command)) for command in commands]
    if any(one.exit_code for one in played):
        print("error: a command of the tour failed", file=sys.stderr)
        return 1
    options.output.write_text(drawn(played), encoding="utf-8")
    print(f"written to {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
