"""Creates a bare `.venv` with pip, even if Python has no `ensurepip`."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from checkout import CACHE, VENV, run, venv_python
from progress import Done, Problem, say

# Marks an environment of ours from its creation until it is complete. An environment without this
# file or a stamp was made by someone else.
UNFINISHED = VENV / "unfinished"
_ZIPAPP_URL = "https://bootstrap.pypa.io/pip/pip.pyz"
_ZIPAPP_LIMIT_S = 60
# The first pip with `--python`, which works on another environment than its own.
_FIRST_WITH_PYTHON = (22, 3)


def make_or_adopt() -> bool:
    """Creates the environment; True if a working one made by someone else already exists."""
    if VENV.exists():
        if not UNFINISHED.exists() and pip_version(venv_python()):
            return True
        _empty()
    VENV.mkdir(exist_ok=True)
    UNFINISHED.touch()
    # Inside an environment, use its base Python: this environment may be the one to recreate.
    python = getattr(sys, "_base_executable", None) or sys.executable
    said = []
    for way in pip_ways(importlib.util.find_spec("ensurepip") is not None, pip_version(python)):
        options = [] if way == "ensurepip" else ["--without-pip"]
        done = run(".venv", "bare environment", [python, "-m", "venv", *options, VENV])
        if done.exit_code == 0 and way == "own pip":
            done = _bring_pip([python, "-m", "pip"])
        elif done.exit_code == 0 and way == "zipapp":
            done = _bring_pip([python, _zipapp()])
        if done.exit_code == 0 and pip_version(venv_python()):
            return False
        said.append(f"{way}: {done.last_error()}")
    raise _no_pip("; ".join(said))


def pip_ways(has_ensurepip: bool, version: tuple[int, ...] | None) -> tuple[str, ...]:
    """Ways to get pip into a new environment, best first; version is that of an existing pip."""
    ways = ["ensurepip"] if has_ensurepip else []
    if version is not None and version >= _FIRST_WITH_PYTHON:
        ways.append("own pip")
    return (*ways, "zipapp")


def pip_version(python: str | Path) -> tuple[int, ...] | None:
    """The version of an interpreter's pip; None if the interpreter or pip does not exist."""
    try:
        done = subprocess.run(
            [python, "-m", "pip", "--version"], capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    found = re.match(r"pip (\d+)\.(\d+)", done.stdout)
    return tuple(map(int, found.groups())) if found else None


def _bring_pip(pip: Sequence[str | Path]) -> Done:
    # A zipapp counts itself as an installed pip.
    install = ["install", "--ignore-installed", "pip"]
    return run(".venv", "pip", [*pip, "--python", venv_python(), *install])


def _zipapp() -> Path:
    path = CACHE / "pip.pyz"
    if path.exists():
        return path
    say("pip", f"fetching {_ZIPAPP_URL} (2 MB)")
    part = path.with_suffix(".part")
    try:
        with urllib.request.urlopen(_ZIPAPP_URL, timeout=_ZIPAPP_LIMIT_S) as answer:
            part.write_bytes(answer.read())
    except OSError as error:
        raise _no_pip(f"{_ZIPAPP_URL}: {error}") from error
    part.replace(path)
    return path


def _no_pip(because: str) -> Problem:
    fix = "repair this Python, or use one from python.org"
    if shutil.which("apt-get"):
        fix = "sudo apt install python3-venv, then run this again"
    return Problem("cannot install pip into a new environment.", because=because, fix=fix)


def _empty() -> None:
    if not VENV.is_dir():
        raise Problem(f"{VENV} is a file.", fix="move it away, then run this again")
    is_ours = UNFINISHED.exists()
    other_side = VENV / ("bin" if sys.platform == "win32" else "Scripts")
    if other_side.is_dir() and not is_ours:
        raise Problem(
            f"{VENV} was made under {'WSL or Linux' if sys.platform == 'win32' else 'Windows'}.",
            because="an environment works only on the system that made it",
            fix="use a separate checkout here, on this system's own disk, which is also faster",
        )
    if not is_ours and not (VENV / "pyvenv.cfg").exists() and any(VENV.iterdir()):
        raise Problem(
            f"{VENV} exists but is not a Python environment.",
            fix="move it away, then run this again",
        )
    say(".venv", "is incomplete or broken, recreating it")
    UNFINISHED.touch()
    for path in VENV.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path != UNFINISHED:
            path.unlink()
