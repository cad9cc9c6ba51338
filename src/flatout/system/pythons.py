"""Interpreters of a required version, and the error for a program that is none."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from flatout.errors import UsageError
from flatout.system.command import run
from flatout.system.process_env import setup_environment

_PRINT_VERSION = (
    "import sys; print('%d.%d' % sys.version_info[:2], sys.implementation.name, sys.executable)"
)


def find_python(version: str) -> str | None:
    """An interpreter of that version ("3.12"), which is checked whether it is; None: there is none.

    Not that of a virtual environment, which may be taken away: the one it was made from.
    """
    seen = set()
    for candidate in _candidates(version):
        if candidate in seen:
            continue
        seen.add(candidate)
        done = run([*candidate, "-c", _PRINT_VERSION], 10.0, setup_environment())
        words = done.stdout.strip().split(maxsplit=2)
        if done.exit_code == 0 and words[:2] == [version, "cpython"]:
            return words[2]
    return None


def not_a_python(python: str, because: str | None) -> UsageError:
    """The error for a program that does not behave as an interpreter does."""
    return UsageError(
        "python-not-found",
        f"{python} does not behave like a Python interpreter.",
        because=because,
        fix="give the path of a Python interpreter, such as .venv/bin/python",
    )


def own_version() -> str:
    """The version of the Python that flatout runs on, like "3.12"."""
    return f"{sys.version_info[0]}.{sys.version_info[1]}"


def _candidates(version: str) -> Iterator[tuple[str, ...]]:
    if version == own_version():
        # Python's own name for the one that a virtual environment was made from.
        original = getattr(sys, "_base_executable", sys.executable)
        yield (original,)
    name = f"python{version}"
    if sys.platform == "win32":
        if shutil.which("py"):
            yield ("py", f"-{version}")
        python = shutil.which("python")
        # The Store's stub opens a window instead of running.
        if python and "WindowsApps" not in python:
            yield (python,)
        return
    for folder in ("", "/usr/bin", "/usr/local/bin", "/opt/homebrew/bin"):
        path = shutil.which(name, path=folder or None)
        if path:
            yield (path,)
    for own in sorted(Path.home().glob(f".pyenv/versions/{version}.*"), reverse=True):
        yield (str(own / "bin" / name),)
