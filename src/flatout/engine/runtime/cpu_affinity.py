"""The CPUs of this process's threads: all that it may use, or one of each core.

Two threads on one core share its arithmetic units, and one that waits for a slow core holds all
others up. Linux keeps the CPUs for each thread apart; a new thread begins with those of the thread
that starts it. Source: man 2 sched_setaffinity.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator

from flatout.schema.recipe import CpuAffinity
from flatout.system.cpu_topology import read_topology


@contextlib.contextmanager
def affinity_settings(value: CpuAffinity) -> Iterator[None]:
    """Keeps all threads of this process on the CPUs meant, and puts back where each was."""
    with pinned_to(read_topology().chosen(value)) if value != "all" else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def pinned_to(cpus: Iterable[int]) -> Iterator[None]:
    """Keeps all threads of this process on these CPUs inside; on Linux only."""
    if sys.platform != "linux":
        yield
        return
    everywhere = os.sched_getaffinity(0)
    before = cpus_by_thread()
    try:
        keep_on(cpus)
        yield
    finally:
        for thread in cpus_by_thread():
            # CPUs may have been taken from a container in the meantime: then the kernel has the
            # say.
            with contextlib.suppress(OSError):
                os.sched_setaffinity(thread, before.get(thread, everywhere))


def keep_on(cpus: Iterable[int]) -> None:
    """Has all threads of this process run on these CPUs alone; without effect but on Linux."""
    if sys.platform != "linux":
        return
    allowed = set(cpus)
    moved: set[int] = set()
    # A thread that was not moved yet may have started another one in the meantime.
    while allowed and (new := cpus_by_thread().keys() - moved):
        for thread in new:
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(thread, allowed)
        moved |= new


def cpus_by_thread() -> dict[int, frozenset[int]]:
    """The CPUs that each thread of this process may run on, by its number; empty but on Linux."""
    cpus_of: dict[int, frozenset[int]] = {}
    if sys.platform != "linux":
        return cpus_of
    for name in os.listdir("/proc/self/task"):
        # It may have ended since.
        with contextlib.suppress(ProcessLookupError):
            cpus_of[int(name)] = frozenset(os.sched_getaffinity(int(name)))
    return cpus_of
