"""Runs functions in parallel, each with a timeout."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeVar

from flatout.system.host_system import Unread

T = TypeVar("T")

_NONE: Mapping[str, float] = MappingProxyType({})


def run_together(
    tasks: Mapping[str, Callable[[], T]], timeout_s: float, longer: Mapping[str, float] = _NONE
) -> dict[str, T | Unread]:
    """The results of these, in their order; a reason for one that fails or takes too long.

    Args:
        tasks: by name.
        timeout_s: for each of them, but for those in `longer`, which have a limit of their own.
        longer: limits of single tasks, in seconds.

    One that hangs (a share that is gone, a driver that does not respond) is left behind in a thread
    that does not keep the process alive.
    """
    results: dict[str, T | Unread] = {}

    def run(name: str, task: Callable[[], T]) -> None:
        try:
            results[name] = task()
        except Exception as error:  # noqa: BLE001 - one family of facts must not cost the others
            results[name] = Unread(f"a bug in flatout: {type(error).__name__}: {error}")

    threads = {
        name: threading.Thread(target=run, args=(name, task), daemon=True)
        for name, task in tasks.items()
    }
    began = time.monotonic()
    limits = {name: longer.get(name, timeout_s) for name in tasks}
    for thread in threads.values():
        thread.start()
    for name in sorted(tasks, key=lambda name: limits[name]):
        threads[name].join(max(0.0, began + limits[name] - time.monotonic()))
    late = {name: Unread(f"no answer within {limits[name]:g} s") for name in tasks}
    return {name: results.get(name, late[name]) for name in tasks}


def begin(task: Callable[[], T], timeout_s: float) -> Callable[[], T | None]:
    """Begins something next to what is done in the meantime; gives what to call for its result.

    The result is None if it failed, or is missing so long after the beginning.
    """
    results: list[T] = []

    def run() -> None:
        with contextlib.suppress(Exception):  # What only adds to something must not cost it.
            results.append(task())

    thread = threading.Thread(target=run, daemon=True)
    began = time.monotonic()
    thread.start()

    def result() -> T | None:
        thread.join(max(0.0, began + timeout_s - time.monotonic()))
        return next(iter(results), None)

    return result
