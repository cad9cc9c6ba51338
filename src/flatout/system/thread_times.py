"""Threads of this process: their names, and the processor time that each has used. Linux only."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

_TASKS = Path("/proc/self/task")


def own_s() -> float:
    """Processor time of the calling thread in seconds."""
    return time.thread_time()


def seconds_by_thread() -> dict[int, float]:
    """Processor time of each thread by its number, in seconds.

    Source: Linux, Documentation/scheduler/sched-stats.rst (/proc/<pid>/schedstat, nanoseconds).
    """
    seconds: dict[int, float] = {}
    for folder in _TASKS.iterdir():
        # It may have ended; some kernels have no such file.
        with contextlib.suppress(OSError):
            seconds[int(folder.name)] = int((folder / "schedstat").read_text().split()[0]) / 1e9
    return seconds


def names_by_thread() -> dict[int, str]:
    """The name of each thread by its number."""
    names: dict[int, str] = {}
    for folder in _TASKS.iterdir():
        with contextlib.suppress(OSError):
            names[int(folder.name)] = (folder / "comm").read_text().rstrip("\n")
    return names


def rename(thread: int, name: str) -> None:
    """Gives a thread a name of at most 15 letters; a thread that has ended is left out."""
    with contextlib.suppress(OSError):
        (_TASKS / str(thread) / "comm").write_text(name)
