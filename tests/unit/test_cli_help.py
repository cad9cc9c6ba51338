"""--help answers at once: it loads no command but the one asked for, and nothing heavy at all."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from support.busy_machine import first_good

from flatout.cli import main

SRC = str(Path(main.__file__).parents[2])
NAMES = ["", *(name for name, _, _ in main.COMMANDS)]
# Processor time, since the clock also counts what others do. Half of it is the target.
LIMIT_S = 0.25

_REPORT = """
import os, sys
sys.path.insert(0, sys.argv.pop(1))
from flatout.cli.main import run
code = run(sys.argv[1:])
names = "flatout.runs.api flatout.system rich psutil msgspec torch asyncio urllib"
print("LOADED", *[name for name in names.split() if name in sys.modules])
print("SPENT", sum(os.times()[:2]))
sys.exit(code)
"""


def ask(*arguments: str) -> tuple[str, list[str], float]:
    """Output, heavy modules and processor time of a command line."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", _REPORT, SRC, *arguments],
        capture_output=True, text=True, check=True, timeout=180,
        env={**os.environ, "PYTHONPATH": ""},
    )  # fmt: skip
    shown, _, rest = done.stdout.partition("LOADED")
    loaded, _, spent = rest.partition("SPENT")
    return shown, loaded.split(), float(spent)


@pytest.mark.parametrize("name", NAMES)
def test_help_loads_nothing_heavy(name: str) -> None:
    shown, loaded, _ = ask(*name.split(), "--help")
    assert shown.startswith("Usage: flatout")
    assert loaded == []


@pytest.mark.timing
def test_help_is_quick() -> None:
    for words in (["--help"], ["train", "--help"]):
        # Next to other programs, the same work takes more processor time now and then.
        _, _, spent_s = first_good(partial(ask, *words), lambda found: found[2] < LIMIT_S)
        assert spent_s < LIMIT_S


def test_help_groups_the_commands() -> None:
    shown, _, _ = ask("--help")
    head, _, commands = shown.partition("\nTrain:\n")
    assert head and "train    Train an experiment" in commands
