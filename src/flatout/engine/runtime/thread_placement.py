"""Keeps each of OpenMP's threads on a CPU of its own while a step is computed.

Threads that wait for each other do so by spinning, for milliseconds. If another program occupies
a CPU, Linux may let two of them share the other one, and leave it so, since two threads there and
one here are as fair as the other way round: each then spins while the other could work, and a step
takes 20 to 100 times as long (LOG.md, 2026-11-27). With a CPU each, a step next to a busy program
takes two to three times as long as alone.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from pathlib import Path

import torch

# Processor time of the calling thread in which its helpers show: many time slices of Linux, which
# takes turns after about 3 ms.
_WATCHED_S = 0.05
# A helper works or spins while the calling thread works.
_LEAST_SHARE = 0.25
# Each attempt watches twice as long as the one before; most steps that use one thread only.
_MOST_ATTEMPTS = 6


class ThreadPlacement:
    """A context around each step; the calling thread and its helpers have a CPU each inside.

    Outside, the calling thread may run anywhere, as may whatever it starts. The helpers keep their
    CPUs until `release`. Nothing happens unless there are as many threads as CPUs, on Linux: with
    a CPU to spare, Linux itself moves threads apart.

    Args:
        num_threads: of torch's operations.
        device: that computes the steps.
    """

    def __init__(self, num_threads: int, device: torch.device) -> None:
        self._num_threads = num_threads
        is_possible = sys.platform == "linux" and device.type == "cpu" and num_threads > 1
        self._attempts_left = _MOST_ATTEMPTS if is_possible else 0
        self._watched_s = _WATCHED_S
        self._began_s: float | None = None
        self._before: dict[int, float] = {}
        self._cpus: list[int] = []
        # The helpers' numbers; empty until they are known.
        self._helpers: list[int] = []
        self._is_placed = False

    def __enter__(self) -> None:
        if self._helpers:
            self._place()
        elif self._attempts_left and self._began_s is None:
            self._begin_watch()

    def __exit__(self, *exception: object) -> None:
        if sys.platform == "linux" and self._is_placed:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, self._cpus)
        elif self._began_s is not None and time.thread_time() - self._began_s >= self._watched_s:
            self._end_watch()

    def release(self) -> None:
        """Lets the helpers run anywhere; they are placed again where a step follows."""
        self._is_placed = False
        if sys.platform == "linux":
            for thread in self._helpers:
                with contextlib.suppress(OSError):
                    os.sched_setaffinity(thread, self._cpus)

    def _place(self) -> None:
        if sys.platform != "linux":
            return
        try:
            if self._is_placed:
                # OpenMP ends threads where fewer are wanted, and starts others with the CPUs of
                # the thread that needs them.
                for thread in self._helpers:
                    os.sched_getaffinity(thread)
            else:
                for cpu, thread in zip(self._cpus[1:], self._helpers, strict=True):
                    os.sched_setaffinity(thread, {cpu})
            os.sched_setaffinity(0, {self._cpus[0]})
            self._is_placed = True
        except OSError:
            # A helper has ended, or a CPU was taken away.
            self.release()
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, self._cpus)
            self._helpers = []

    def _begin_watch(self) -> None:
        if sys.platform == "linux":
            self._cpus = sorted(os.sched_getaffinity(0))
        if len(self._cpus) != self._num_threads:
            self._attempts_left = 0
            return
        self._began_s, self._before = time.thread_time(), _seconds_by_thread()

    def _end_watch(self) -> None:
        """The helpers are the other threads that were busy, if there are as many as expected."""
        assert self._began_s is not None
        own_s = time.thread_time() - self._began_s
        busy = [
            thread
            for thread, seconds in _seconds_by_thread().items()
            if seconds - self._before.get(thread, 0.0) >= _LEAST_SHARE * own_s
            and thread != threading.get_native_id()
        ]
        self._began_s = None
        self._attempts_left -= 1
        self._watched_s *= 2
        if len(busy) == self._num_threads - 1:
            self._helpers = busy


def _seconds_by_thread() -> dict[int, float]:
    """Processor time of each thread of this process by its number.

    Source: Linux, Documentation/scheduler/sched-stats.rst (/proc/<pid>/schedstat, nanoseconds).
    """
    seconds: dict[int, float] = {}
    for folder in Path("/proc/self/task").iterdir():
        # It may have ended; some kernels have no such file.
        with contextlib.suppress(OSError):
            seconds[int(folder.name)] = int((folder / "schedstat").read_text().split()[0]) / 1e9
    return seconds
