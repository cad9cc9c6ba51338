"""Pins each OpenMP thread to a CPU of its own while a step is computed.

OpenMP threads wait for each other by spinning, for milliseconds. Linux shares CPUs out to sessions
(see autogroups in sched(7)), so next to a busy program of another terminal, two of them on one CPU
and that program on the other are what it balances to. Each then spins while the other could work:
in benchmarks/thread_placement.py such steps took 10 to 30 times as long as pinned ones, and these
two to five times as long as alone.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading

import torch

from flatout.system import thread_times

# Processor time of the calling thread after which OpenMP's threads can be found among all: many of
# Linux's time slices, which are about 3 ms.
_WATCHED_S = 0.05
# An OpenMP thread works or spins while the calling thread works.
_LEAST_SHARE = 0.25
# Its product takes all threads for some milliseconds.
_MATRIX = 512
# Each attempt watches twice as long as the one before. A step that uses one thread has no others.
_MOST_ATTEMPTS = 6
_ATTEMPTS_AT_ONCE = 3


class ThreadPlacement:
    """A context around each step: inside, the calling thread and OpenMP's others have a CPU each.

    Outside, the calling thread may run anywhere, as may whatever it starts. The others stay pinned
    until `release`. Nothing happens unless torch uses as many threads as there are CPUs, on Linux:
    with a CPU to spare, Linux itself moves threads apart.

    Args:
        device: that computes the steps.
    """

    def __init__(self, device: torch.device) -> None:
        is_possible = sys.platform == "linux" and device.type == "cpu"
        self._attempts_left = _MOST_ATTEMPTS if is_possible else 0
        self._watched_s = _WATCHED_S
        self._began_s: float | None = None
        self._before: dict[int, float] = {}
        self._cpus: list[int] = []
        # Numbers of OpenMP's other threads; empty until they are known.
        self._others: list[int] = []
        self._is_placed = False

    def __enter__(self) -> None:
        if not self._others and self._attempts_left and self._began_s is None:
            self._begin_watch()
        if self._others:
            self._place()

    def __exit__(self, *exception: object) -> None:
        if sys.platform == "linux" and self._is_placed:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, self._cpus)
        elif self._began_s is not None and thread_times.own_s() - self._began_s >= self._watched_s:
            self._end_watch()

    def find(self) -> None:
        """Finds OpenMP's threads by work of its own, where the first step may be the only one."""
        matrix = torch.ones(_MATRIX, _MATRIX)
        # Next to other programs, OpenMP's threads may get too little of the first one.
        num_left = self._attempts_left - _ATTEMPTS_AT_ONCE
        while self._attempts_left > max(0, num_left) and not self._others:
            with self:
                torch.mm(matrix, matrix)

    def release(self) -> None:
        """Unpins OpenMP's threads; the next step pins them again."""
        if sys.platform == "linux" and self._is_placed:
            for thread in self._others:
                with contextlib.suppress(OSError):
                    os.sched_setaffinity(thread, self._cpus)
        self._is_placed = False

    def _place(self) -> None:
        if sys.platform != "linux":
            return
        if torch.get_num_threads() != len(self._cpus):
            self.release()
            return
        try:
            # Each time: OpenMP ends threads where fewer are wanted, and starts others with the CPUs
            # of the thread that needs them; and settings of the process may have moved them.
            for cpu, thread in zip(self._cpus[1:], self._others, strict=True):
                if os.sched_getaffinity(thread) != {cpu}:
                    os.sched_setaffinity(thread, {cpu})
            os.sched_setaffinity(0, {self._cpus[0]})
            self._is_placed = True
        except OSError:
            # A thread has ended, or a CPU was taken away.
            self._is_placed = True
            self.release()
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, self._cpus)
            self._others = []

    def _begin_watch(self) -> None:
        if sys.platform == "linux":
            self._cpus = sorted(os.sched_getaffinity(0))
        num_threads = torch.get_num_threads()
        if num_threads == 1 or len(self._cpus) != num_threads:
            self._attempts_left = 0
            return
        # Another placement has found and named them.
        known = [
            thread
            for thread, name in thread_times.names_by_thread().items()
            if name == _openmp_name()
        ]
        if len(known) == num_threads - 1:
            self._others = known
            return
        self._began_s, self._before = thread_times.own_s(), thread_times.seconds_by_thread()

    def _end_watch(self) -> None:
        """OpenMP's are the threads that were busy, if there are as many as expected."""
        assert self._began_s is not None
        own_s = thread_times.own_s() - self._began_s
        busy = [
            thread
            for thread, seconds in thread_times.seconds_by_thread().items()
            if seconds - self._before.get(thread, 0.0) >= _LEAST_SHARE * own_s
            and thread != threading.get_native_id()
        ]
        self._began_s = None
        self._attempts_left -= 1
        self._watched_s *= 2
        if len(busy) == len(self._cpus) - 1:
            self._others = busy
            for thread in busy:
                thread_times.rename(thread, _openmp_name())


def _openmp_name() -> str:
    """The name of the threads that OpenMP has started for this one; `top -H` and gdb show it."""
    return f"omp {threading.get_native_id()}"
