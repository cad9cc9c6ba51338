"""Paths in this checkout, and running commands in its environment."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from progress import Done, run_watched, say

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
CACHE = ROOT / ".cache"
LOG = CACHE / "environment.log"

# The parts of flatout that the scripts import (to choose a torch) need only the standard library.
sys.path.insert(0, str(ROOT / "src"))


def venv_python() -> Path:
    """The environment's interpreter."""
    return VENV / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")


def run(label: str, title: str, argv: Sequence[str | Path]) -> Done:
    """Runs a command in the checkout, shows progress and logs its output."""
    return run_watched(label, title, argv, log=LOG, cwd=ROOT)


def pip_install(title: str, arguments: Sequence[str]) -> Done:
    """Installs into the environment, with its own pip.

    Modules are compiled on import instead: compiling all of torch and its dependencies would take
    longer than copying them, and most are never imported.
    """
    pip = ["-m", "pip", "install", "--no-compile"]
    return run("install", title, [venv_python(), *pip, *arguments])


@contextlib.contextmanager
def lock() -> Iterator[None]:
    """Lets one script at a time change the environment; freed when its process ends."""
    CACHE.mkdir(exist_ok=True)
    descriptor = os.open(CACHE / "environment.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if not _is_locked(descriptor, is_patient=False):
            say("waiting", "another script is creating .venv")
            while not _is_locked(descriptor, is_patient=True):
                pass
        yield
    finally:
        os.close(descriptor)


def _is_locked(descriptor: int, *, is_patient: bool) -> bool:
    try:
        if sys.platform == "win32":
            import msvcrt

            # The blocking call gives up after ten seconds.
            msvcrt.locking(descriptor, msvcrt.LK_LOCK if is_patient else msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if is_patient else fcntl.LOCK_NB))
    except OSError:
        return False
    return True
