"""Requests to stop: a file in the run's folder, the end of a pipe, or a signal."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flatout.schema.run_lines import DESERTED

_POLLED_EVERY_S = 0.2
# By a signal: also torchrun ends ranks so, once another one has failed.
TERMINATED = "terminated"


class StopRequest:
    """A request to end the training after its step; checked once a step."""

    def __init__(self) -> None:
        self.reason: str | None = None

    def make(self, reason: str) -> None:
        """Requests a stop; the first reason is the one reported."""
        self.reason = self.reason or reason


class StoppedEarly(Exception):
    """A stop was requested before the training started. reason: why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@contextlib.contextmanager
def watched_file(path: Path, request: StopRequest) -> Iterator[None]:
    """Requests a stop when the file appears. An existing one was meant for another process.

    Where the training fails, the file is left: the supervisor looks for it before a restart.
    """
    path.unlink(missing_ok=True)
    is_over = threading.Event()

    def poll() -> None:
        while not is_over.wait(_POLLED_EVERY_S):
            if path.exists():
                request.make("asked to stop")
                return

    thread = threading.Thread(target=poll, name="stop request", daemon=True)
    thread.start()
    has_failed = False
    try:
        yield
    except Exception as error:
        has_failed = not isinstance(error, StoppedEarly)
        raise
    finally:
        is_over.set()
        thread.join()
        if not has_failed:
            path.unlink(missing_ok=True)


def watch_pipe(request: StopRequest) -> None:
    """Asks for a stop when standard input ends: the command line at its other end has died."""
    # Read below Python's file object: that one's lock, held by a waiting reader, would be held for
    # ever in a loader worker that is forked in the meantime and closes its standard input.
    descriptor = os.dup(sys.stdin.fileno())
    sys.stdin = io.StringIO()

    def read() -> None:
        with contextlib.suppress(OSError):
            while os.read(descriptor, 1):
                pass
        request.make(DESERTED)

    threading.Thread(target=read, name="command line", daemon=True).start()


@contextlib.contextmanager
def signals_as_requests(request: StopRequest) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM asks for a stop, a second one acts as ever."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before: dict[int, Any] = {number: signal.getsignal(number) for number in numbers}

    def request_stop(number: int, frame: Any) -> None:
        request.make("interrupted" if number == signal.SIGINT else TERMINATED)
        signal.signal(number, before[number] or signal.SIG_DFL)

    for number in numbers:
        signal.signal(number, request_stop)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, before[number] or signal.SIG_DFL)
