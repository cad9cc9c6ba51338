"""Packages of a Python environment: which program changes them, and where the environment is."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path

from flatout.errors import RunFailed, UsageError
from flatout.system import command
from flatout.system.pythons import not_a_python

_QUERY_TIMEOUT_S = 30.0
_PRINT_PREFIX = (
    "import os, sys; print(os.path.realpath(sys.prefix)); "
    "print(sys.prefix != sys.base_prefix or os.path.isdir(os.path.join(sys.prefix, 'conda-meta')))"
)
# What the user's shell adds must not decide what is found in the environment.
_DROPPED = ("PYTHONPATH", "PYTHONHOME", "PIP_USER", "PIP_TARGET", "PIP_PREFIX", "VIRTUAL_ENV")


def environment_folder(python: str) -> Path:
    """The folder of an interpreter's environment.

    Raises:
        UsageError: python-not-found; environment-not-virtual, where it is the system's Python.
    """
    done = command.run([python, "-I", "-c", _PRINT_PREFIX], _QUERY_TIMEOUT_S)
    lines = done.stdout.splitlines()
    if done.exit_code != 0 or len(lines) != 2:
        raise not_a_python(python, done.reason or done.stderr.strip()[-300:] or None)
    if lines[1] != "True":
        raise UsageError(
            "environment-not-virtual",
            f"{python} is the system's Python, which flatout does not modify.",
            because="programs of the system may depend on its packages",
            fix="create an environment: python3 -m venv .venv",
        )
    return Path(lines[0])


def package_command(python: str, words: Sequence[str]) -> list[str]:
    """The command that changes an environment's packages.

    Args:
        python: the environment's interpreter.
        words: as pip takes them: ("install", "numpy<2").

    Raises:
        RunFailed: pip-missing.
    """
    own = ["--disable-pip-version-check", "--no-input"]
    sure = ["--yes"] if words[0] == "uninstall" else []
    pip_words = [words[0], *sure, *words[1:]]
    if command.run([python, "-I", "-c", "import pip.__main__"], _QUERY_TIMEOUT_S).exit_code == 0:
        return [python, "-I", "-m", "pip", *own, *pip_words]
    uv = shutil.which("uv")
    if uv:
        return [uv, "pip", words[0], "--python", python, *words[1:]]
    if PathFinder.find_spec("pip"):
        return [sys.executable, "-I", "-m", "pip", "--python", python, *own, *pip_words]
    raise RunFailed(
        "pip-missing",
        f"{python} has no pip, and uv is not installed.",
        fix=f"{python} -m ensurepip --upgrade",
    )


def package_environment() -> dict[str, str]:
    """The environment variables of that command: indexes, proxies and certificates stay."""
    inherited = {name: value for name, value in os.environ.items() if name not in _DROPPED}
    # A conda environment sees the user's own packages too, and pip would take them for its.
    return {**inherited, "PYTHONNOUSERSITE": "1"}
