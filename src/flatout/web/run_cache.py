"""The user's runs, read again only where one of their files has changed.

A page of a thousand runs asks for the times of their files, and reads few of them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from flatout.errors import FlatoutError, UsageError
from flatout.runs.listing import listed_run
from flatout.runs.model.listed import ListedRun
from flatout.schema.run import Run
from flatout.schema.run_lines import Validated
from flatout.system.store.run_folder import RunFolder, run_paths, validations_of

# Of a run's validations, the best one and so many of the last are kept.
_KEPT_VALIDATIONS = 12
# A line that was being written when the metrics were read last began no earlier.
_LONGEST_LINE_BYTES = 1 << 20
_NUM_THREADS = 8

_Stamp = tuple[tuple[int, int], ...]


class _Entry(msgspec.Struct):
    """A run as it was read. validations: kept ones, of the first so many bytes of the metrics."""

    stamp: _Stamp
    row: ListedRun | None = None
    validations: list[Validated] = []
    num_read_bytes: int = 0


class RunCache:
    """Rows of `flatout runs`, for threads that ask for them at the same time.

    Args:
        list_paths: folders of the runs that there are, oldest first.
    """

    def __init__(self, list_paths: Callable[[], list[Path]] = run_paths) -> None:
        self._list_paths = list_paths
        self._lock = threading.Lock()
        self._entries: dict[Path, _Entry] = {}
        # As they were listed last.
        self._by_id: dict[str, Path] = {}

    def paths(self) -> list[Path]:
        """Folders of all runs, oldest first. What is known about others is forgotten."""
        paths = [path for path in self._list_paths() if _is_text(path.name)]
        self._by_id = {path.name: path for path in paths}
        with self._lock:
            if len(self._entries) > len(paths):
                for path in self._entries.keys() - set(paths):
                    del self._entries[path]
        return paths

    def has(self, run_id: str) -> bool:
        """Whether there is a run of that id."""
        return self._path_of(run_id) is not None

    def find(self, run_id: str) -> RunFolder:
        """A run by its id, which is looked up; it is never part of a path.

        Raises:
            UsageError: unknown-run.
        """
        path = self._path_of(run_id)
        if path is None:
            raise UsageError("unknown-run", f"there is no run `{run_id}`.", fix="list runs: /runs")
        return RunFolder(path)

    def _path_of(self, run_id: str) -> Path | None:
        """The folder of that name among the runs; they are listed again where it is not known."""
        path = self._by_id.get(run_id)
        if path is None or not os.path.lexists(path):
            self.paths()
        return self._by_id.get(run_id)

    def rows(self, paths: Iterable[Path]) -> list[ListedRun]:
        """These runs, in this order; without those that were removed in the meantime."""
        # Whether a lock is taken is asked several times, with pauses: many are asked at once.
        with ThreadPoolExecutor(_NUM_THREADS) as threads:
            return [row for row in threads.map(self.row, paths) if row is not None]

    def running(self, paths: Iterable[Path]) -> set[Path]:
        """Those of the runs that a process is training."""
        paths = list(paths)
        with ThreadPoolExecutor(_NUM_THREADS) as threads:
            return {path for path, is_ in zip(paths, threads.map(_is_taken, paths), strict=True)
                    if is_}  # fmt: skip

    def row(self, path: Path) -> ListedRun | None:
        """A run as it is now."""
        with self._lock:
            entry = self._entries.get(path)
        stamp = _stamp(path)
        if entry is None or entry.stamp != stamp or _may_have_ended(entry.row, path):
            entry = _read(path, stamp, entry)
            with self._lock:
                self._entries[path] = entry
        return entry.row


def _is_text(name: str) -> bool:
    """Whether a name can be in a page; in Linux a folder's name may be any bytes."""
    return name.isascii() or name.encode(errors="replace").decode() == name


def _read(path: Path, stamp: _Stamp, before: _Entry | None) -> _Entry:
    """Reads a run; of its metrics, which may be long, only what is new."""
    folder = RunFolder(path)
    known: list[Validated] = []
    size, offset = stamp[2][1], 0
    if before is not None and before.num_read_bytes <= size:
        known, offset = before.validations, before.num_read_bytes
    try:
        last_step = known[-1].step if known else -1
        start = max(0, offset - _LONGEST_LINE_BYTES)
        new = (line for line in validations_of(folder, offset=start) if line.step > last_step)
        for line in new:
            known = _kept([*known, line])
    except FlatoutError:
        # `listed_run` finds the same, and says what is wrong with the run.
        row = listed_run(folder)
        return _Entry(stamp=stamp, row=row)
    row = listed_run(folder, known)
    if before is not None and _started_at(row) != _started_at(before.row):
        # A resume has cut the metrics back to a checkpoint.
        return _read(path, stamp, None)
    return _Entry(stamp=stamp, row=row, validations=known, num_read_bytes=size)


def _started_at(row: ListedRun | None) -> float | None:
    run = row.run if row is not None else None
    return run.started.at if isinstance(run, Run) and run.started is not None else None


def _kept(validations: list[Validated]) -> list[Validated]:
    best = [line for line in validations if line.is_best][-1:]
    last = validations[-_KEPT_VALIDATIONS:]
    return last if not best or best[0] in last else [*best, *last]


def _may_have_ended(row: ListedRun | None, path: Path) -> bool:
    """Whether a worker may have been killed, which changes no file."""
    if row is None or not isinstance(row.run, Run) or row.run.status not in ("running", "new"):
        return False
    return _is_taken(path) != (row.run.status == "running")


def _is_taken(path: Path) -> bool:
    try:
        return RunFolder(path).lock().is_taken()
    except (FlatoutError, OSError):
        return False


def _stamp(path: Path) -> _Stamp:
    """Times and sizes of a run's files."""
    stamps = []
    for name in ("run.json", "events.jsonl", "metrics.jsonl", "checkpoints"):
        try:
            found = os.stat(path / name)
            stamps.append((found.st_mtime_ns, found.st_size))
        except OSError:
            stamps.append((0, 0))
    return tuple(stamps)
