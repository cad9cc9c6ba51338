"""Measurements that other programs only make worse: repeated until one of them is good."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TypeVar

import psutil

T = TypeVar("T")
# For what takes a moment on an idle machine, and longer on one that does thirty other things.
PATIENCE_S = 180.0


def least_s(
    call: Callable[[], object],
    limit_s: float,
    clock: Callable[[], float] = time.perf_counter,
    most_calls: int = 8,
) -> float:
    """The shortest time of some calls; of one, if that is below the limit."""
    shortest_s = math.inf
    for _ in range(most_calls):
        began_s = clock()
        call()
        shortest_s = min(shortest_s, clock() - began_s)
        if shortest_s < limit_s:
            break
    return shortest_s


def first_good(measure: Callable[[], T], is_good: Callable[[T], bool], most_calls: int = 5) -> T:
    """The first measurement for which that holds; the last one, if it holds for none."""
    for _ in range(most_calls - 1):
        found = measure()
        if is_good(found):
            return found
    return measure()


def has_ended(pid: int) -> bool:
    """Whether no such process works any more; one that only waits to be collected does not."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_until(is_so: Callable[[], object], limit_s: float = PATIENCE_S) -> None:
    """Waits until something is so.

    Raises:
        AssertionError: it has not become so.
    """
    until_s = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < until_s, f"not within {limit_s:.0f} s"
        time.sleep(0.01)
