"""What a shell is offered: asked of the real shells, where they are installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flatout.cli import completion_words, shell_completion
from flatout.errors import UsageError
from flatout.runs import listing

# The program that a shell finds: this checkout's flatout.
_PROGRAM = """#!/bin/sh
exec {python} -P -c '{start}' "$@"
"""
_START = 'import sys; sys.path.insert(0, "{src}"); import flatout.__main__ as m; m.main()'
_ASK_BASH = """
source ./script
COMP_LINE={line!r}; COMP_POINT=${{#COMP_LINE}}
_flatout_completion flatout 2>/dev/null
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture
def shell(trained: Any) -> Any:
    """A command line whose `flatout` on the path is this one."""
    folder = trained.folder / "bin"
    folder.mkdir()
    program = folder / "flatout"
    src = Path(listing.__file__).parents[2]
    program.write_text(_PROGRAM.format(python=sys.executable, start=_START.format(src=src)))
    program.chmod(0o755)
    (trained.folder / "data").mkdir()
    trained.path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    return trained


def ask(shell: Any, *program: str) -> list[str]:
    """What a shell prints, line by line."""
    if sys.platform == "win32" or shutil.which(program[0]) is None:
        pytest.skip(f"needs {program[0]}")
    done = subprocess.run(
        program, cwd=shell.folder, env=shell.environment(PATH=shell.path, TERM="dumb"),
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return done.stdout.split("\n")[:-1]


def ask_bash(shell: Any, line: str) -> list[str]:
    """What bash would offer for a line that is being typed."""
    (shell.folder / "script").write_text(shell_completion.script("bash"))
    return ask(shell, "bash", "--norc", "-c", _ASK_BASH.format(line=line))


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("flatout tra", ["train"]),
        ("flatout train dig", ["digits"]),
        ("flatout train mi", ["mine.py"]),
        ("flatout train dat", ["data/"]),
        ("flatout train ./mi", ["./mine.py"]),
        ("flatout train digits -s w", ["width="]),
        ("flatout train mine.py -s ", ["lr=", "mode=", "steps=", "pause=", "hold="]),
        ("flatout train charlm -s size=", ["full", "tiny"]),
        ("flatout train charlm -s size=t", ["tiny"]),
        ("flatout train charlm --size t", ["tiny"]),
        ("flatout train charlm --size=t", ["tiny"]),
        ("flatout train mine.py --mo", ["--mode"]),
        ("flatout tune digits --wi", ["--width"]),
        ("flatout train --resume mi", ["mine-0001"]),
        ("flatout train digits --init la", ["last"]),
        ("flatout show m", ["mine-0001"]),
        ("flatout runs rm ", ["mine-0001", "last"]),
        ("flatout compare mine-0001 l", ["last"]),
        ("flatout evaluate mine-0001 -s l", ["lr="]),
        ("flatout evaluate mine-0001 --st", ["--steps"]),
        ("flatout completion f", ["fish"]),
        ("flatout train 'unfinished", [""]),
    ],
)
def test_bash_is_offered(shell: Any, line: str, offered: list[str]) -> None:
    assert ask_bash(shell, line) == offered


@pytest.mark.parametrize("damage", ["unreadable", "cut"])
def test_bash_is_offered_runs_also_beside_a_damaged_one(shell: Any, damage: str) -> None:
    (shell.runs / "bad").mkdir()
    content = b"\xff" if damage == "unreadable" else b"{"
    (shell.runs / "bad" / "run.json").write_bytes(content)
    assert ask_bash(shell, "flatout evaluate ba") == ["bad"]
    assert ask_bash(shell, "flatout evaluate bad -s ") == [""]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("a", ["'a b'/", "'a|b.py'"]),
        ("a\\ b", ["'a b'/"]),
        ("`", ["'`touch x`.py'"]),
        ("it", ["'it'\"'\"'s.py'"]),
        ("line", [""]),
        ("'a", [""]),
        ("p'l", ["plain.py"]),
        ('"`', [""]),
        ("~/m", ["~/'m y.py'", "~/mine.py"]),
        ("tilde", ["'tilde~'/"]),
    ],
)
def test_bash_is_offered_odd_names_in_quotes(shell: Any, line: str, offered: list[str]) -> None:
    if sys.platform == "win32":
        pytest.skip("no such names")
    names = ("`touch x`.py", "a|b.py", "it's.py", "line\nbreak.py", "line\x1b.py", "plain.py")
    for name in (*names, "m y.py"):
        (shell.folder / name).write_text("")
    for name in ("a b", "tilde~"):
        (shell.folder / name).mkdir()
    asked = shell.environment(COMP_WORDS=f"flatout train {line}", HOME=str(shell.folder),
                              _FLATOUT_COMPLETE="bash_complete")  # fmt: skip
    done = subprocess.run(
        ["flatout"], cwd=shell.folder, env=asked | {"PATH": shell.path}, capture_output=True,
        text=True, timeout=60, check=False, executable=str(shell.folder / "bin" / "flatout"),
    )  # fmt: skip
    assert done.stdout.split("\n")[:-1] == offered


def test_powershell_is_offered_odd_names_in_quotes(shell: Any) -> None:
    (shell.folder / "a;b.py").write_text("")
    asked = {"COMP_WORDS": "flatout train a", "COMP_CWORD": "2",
             "_FLATOUT_COMPLETE": "powershell_complete"}  # fmt: skip
    done = shell.run(**asked)
    assert done.returncode or "'a;b.py'" in done.stdout.splitlines()


def test_zsh_is_offered(shell: Any) -> None:
    (shell.folder / "script").write_text(shell_completion.script("zsh"))
    program = (
        "autoload -Uz compinit; compinit -u -D; source ./script; "
        "compadd() { print -l $completions; }; "
        "_describe() { print -l $completions_with_descriptions; }; "
        "words=(flatout show m); CURRENT=3; _flatout_completion; "
        "words=(flatout train digits -s w); CURRENT=5; _flatout_completion"
    )
    found = "\n".join(ask(shell, "zsh", "-f", "-c", program))
    assert "mine-0001" in found and "width=" in found


def test_fish_is_offered(shell: Any) -> None:
    (shell.folder / "script").write_text(shell_completion.script("fish"))
    program = (
        "source ./script; complete -C 'flatout show m'; complete -C 'flatout train digits -s w'"
    )
    found = "\n".join(ask(shell, "fish", "--no-config", "-c", program))
    assert "mine-0001" in found and "width=" in found


def test_script_when_click_does_not_know_the_shell() -> None:
    with pytest.raises(UsageError, match="wrong-usage"):
        shell_completion.script("tcsh")


def test_completion_loads_nothing_that_takes_long(shell: Any) -> None:
    report = (
        f"import sys; sys.path.insert(0, {str(Path(listing.__file__).parents[2])!r})\n"
        "from flatout.cli.main import run\n"
        "run([])\n"
        "print('LOADED', [n for n in ('flatout.runs.api', 'rich', 'torch', 'psutil', 'numpy')"
        " if n in sys.modules])"
    )
    asked = {"COMP_WORDS": "flatout train digits -s ", "_FLATOUT_COMPLETE": "bash_complete"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", report], env=shell.environment(**asked),
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert "lr=" in done.stdout.splitlines()
    assert "LOADED []" in done.stdout


def test_values_of_a_parameter_with_choices() -> None:
    (size, *_) = listing.parameters_of("charlm")
    assert completion_words.values_of(size) == ["full", "tiny"]
