"""Finds the user's runs that are in use, again and again, among thousands of others."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection
from pathlib import Path

from flatout.errors import FlatoutError
from flatout.system.clock import elapsed_s
from flatout.system.store.run_folder import RunFolder, run_paths

# Between looks. If they take more than this share of the time, they are seldomer, up to a limit: a
# run that begins must be seen soon, even after a disk that did not respond for a while.
LOOK_EVERY_S, _LONGEST_PAUSE_S = 3.0, 15.0
_LOOK_SHARE = 0.005


class RunFinder:
    """Finds runs that have begun to be used since it looked last.

    Args:
        is_used: whether a run is one to find, such as `RunFolder.is_in_use`.
    """

    def __init__(self, is_used: Callable[[RunFolder], bool]) -> None:
        self._is_used = is_used
        # Of those that are not in use: when their events were written last.
        self._idle_since: dict[Path, int] = {}
        self._next_s = -float("inf")

    def take(self, known: Collection[Path]) -> list[RunFolder]:
        """The runs in use that are not known yet; none where it is not yet time to look again."""
        began_s = elapsed_s()
        if began_s < self._next_s:
            return []
        found: list[RunFolder] = []
        # A disk that does not respond at the moment.
        with contextlib.suppress(FlatoutError, OSError):
            found = [
                RunFolder(path)
                for path in run_paths()
                if path not in known and self._has_begun(path)
            ]
        took_s = elapsed_s() - began_s
        self._next_s = began_s + min(_LONGEST_PAUSE_S, max(LOOK_EVERY_S, took_s / _LOOK_SHARE))
        return found

    def _has_begun(self, path: Path) -> bool:
        # Asked first: what is written while the lock is tested is seen the next time.
        written_ns = _written_ns(path)
        if self._idle_since.get(path) == written_ns:
            return False
        try:
            is_used = self._is_used(RunFolder(path))
        except (FlatoutError, OSError):
            # Not known: it is asked again the next time.
            return False
        if not is_used:
            self._idle_since[path] = written_ns
        return is_used


def _written_ns(path: Path) -> int:
    """When a run's events were written last; without any, its folder."""
    for name in ("events.jsonl", ""):
        with contextlib.suppress(OSError):
            return os.stat(path / name if name else path).st_mtime_ns
    return 0
