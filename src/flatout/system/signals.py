"""Ctrl-C as a number to poll, so that it never cuts a write or a screen in two."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Any


class Interrupts:
    """Counts Ctrl-C and SIGTERM while it is open, instead of letting them end the program."""

    def __init__(self) -> None:
        self.count = 0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupts:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._count)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def give_way(self) -> None:
        """Ends what is only being prepared, as Ctrl-C does elsewhere; called where that is safe.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed.
        """
        if self.count:
            raise KeyboardInterrupt

    def _count(self, number: int, frame: FrameType | None) -> None:
        self.count += 1


@contextlib.contextmanager
def raised_interrupts() -> Iterator[None]:
    """Ctrl-C and SIGTERM raise KeyboardInterrupt inside, for a wait that looks at no count."""
    before = {
        number: signal.signal(number, signal.default_int_handler)
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
