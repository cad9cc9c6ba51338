"""A run read while someone else writes it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from flatout.schema.run_lines import Event, Line, Metric, Started
from flatout.system import atomic_files
from flatout.system.signals import Interrupts
from flatout.system.store.run_folder import RunFolder, run_in_use

_POLL_S = 0.1


class RunTail:
    """The news in a run's folder at each call.

    Args:
        folder: the run.
        is_from_end: only what a session writes that is started after this call; else everything.
    """

    def __init__(self, folder: RunFolder, *, is_from_end: bool = False) -> None:
        self._folder = folder
        is_new = not is_from_end or not folder.events.exists()
        self._events_at = 0 if is_new else folder.events.stat().st_size
        self._metrics_at = 0
        # A resumed session cuts metrics.jsonl back before it says Started: until then an offset
        # into that file means nothing.
        self._is_waiting = is_from_end
        self._last_known_step = -1

    def new_lines(self) -> list[Line]:
        """Lines written since the last call, in the order of their times."""
        events, self._events_at = atomic_files.read_lines_from(
            self._folder.events, self._events_at, Event
        )
        started = next((line for line in events if isinstance(line, Started)), None)
        if started:
            # It is cut back also in the middle of a session that goes back to a checkpoint.
            self._is_waiting, self._metrics_at = False, 0
            self._last_known_step = started.step if started.resumed else -1
        elif self._has_been_cut():
            self._is_waiting = True
        metrics: list[Line] = []
        if not self._is_waiting:
            metrics, self._metrics_at = atomic_files.read_lines_from(
                self._folder.metrics, self._metrics_at, Metric
            )
        new = [line for line in metrics if line.step > self._last_known_step]
        return sorted([*events, *new], key=lambda line: line.at)

    def _has_been_cut(self) -> bool:
        """Whether the metrics are fewer than were read: someone goes back to a checkpoint."""
        metrics = self._folder.metrics
        return metrics.exists() and metrics.stat().st_size < self._metrics_at


def follow_lines(tail: RunTail, is_working: Callable[[], bool]) -> Iterator[list[Line]]:
    """New lines, again and again (an empty list where nothing is new), until the work has ended."""
    while True:
        read_at_s = time.monotonic()
        # Checked before reading: what was written before the end is then read for certain.
        is_last = not is_working()
        yield tail.new_lines()
        if is_last:
            return
        # When several runs are followed in turn, the wait of the first serves all.
        time.sleep(max(0.0, read_at_s + _POLL_S - time.monotonic()))


def wait_until_free(
    folder: RunFolder, limit_s: float | None = None, interrupts: Interrupts | None = None
) -> bool:
    """Waits until no one trains in a run's folder; False if someone still does after limit_s."""
    end = None if limit_s is None else time.monotonic() + limit_s
    while folder.lock().is_taken():
        if end is not None and time.monotonic() >= end:
            return False
        if interrupts is not None:
            interrupts.give_way()
        time.sleep(_POLL_S)
    return True


def refuse_if_taken(folder: RunFolder) -> None:
    """Raises UsageError run-in-use while someone trains in the run's folder."""
    if folder.lock().is_taken():
        raise run_in_use(folder)
