"""A process that may run only in a share of the time: stopped and continued, many times a second.

It needs no permission, unlike a quota of a control group, and exists on every system: signals on
Linux and macOS, suspended threads on Windows.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import psutil

PERIOD_S = 0.05


@contextlib.contextmanager
def duty_cycle(pid: int, share: float) -> Iterator[None]:
    """Lets a process run in this share of the time until the context ends; then it runs again.

    Args:
        pid: of a process of ours.
        share: between 0 and 1; 1 does nothing.
    """
    if share >= 1:
        yield
        return
    ended = threading.Event()
    thread = threading.Thread(target=_alternate, args=(pid, share, ended), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _alternate(pid: int, share: float, ended: threading.Event) -> None:
    # The process may end meanwhile.
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        try:
            while not ended.wait(PERIOD_S * share):
                process.suspend()
                ended.wait(PERIOD_S * (1 - share))
                process.resume()
        finally:
            process.resume()
