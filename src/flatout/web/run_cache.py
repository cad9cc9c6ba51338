"""The user's runs, read again only where one of their files has changed.

A page of a thousand runs asks for the times of their files, and reads few of them. What it cannot
read quickly enough is read in the background, in short turns: Python runs one thread at a time, and
a page that asks for the times of a thousand files would wait after each of them.
"""

from __future__ import annotations

import itertools
import math
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
from flatout.system.clock import elapsed_s, sleep_s
from flatout.system.store.run_folder import RunFolder, run_paths, validations_from
from flatout.web.background_query import BackgroundQuery

# Of a run's validations, the best one and so many of the last are kept.
_KEPT_VALIDATIONS = 12
_NUM_THREADS = 8
# How long runs are read in the background without a pause, the pause, and the least time from one
# start of this to the next.
_TURN_S, _PAUSE_S, _LOOK_EVERY_S = 0.005, 0.01, 1.0

_Stamp = tuple[tuple[int, int], ...]


class ReadLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a page may read before it is shown.

    part_bytes: of the metrics of a run. list_s: how long of the runs of a list, of which the first
    few are always read.
    """

    part_bytes: float = math.inf
    list_s: float = math.inf
    num_always: int = 20


# A copy of the pages waits for everything.
NO_LIMITS = ReadLimits()
SERVER_LIMITS = ReadLimits(part_bytes=4 << 20, list_s=0.1)


class KnownRuns(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of runs. num_unread: runs that are missing, because they are still being read."""

    rows: list[ListedRun]
    num_unread: int


class _Entry(msgspec.Struct):
    """A run as it was read. validations: kept ones, of the first so many bytes of the metrics.

    is_whole: the metrics have no more lines.
    """

    stamp: _Stamp
    row: ListedRun | None = None
    validations: list[Validated] = []
    num_read_bytes: int = 0
    is_whole: bool = True


class RunCache:
    """Rows of `flatout runs`, for threads that ask for them at the same time.

    Args:
        list_paths: folders of the runs that there are, oldest first.
        limits: for a page.
    """

    def __init__(
        self, list_paths: Callable[[], list[Path]] = run_paths, limits: ReadLimits = NO_LIMITS
    ) -> None:
        self._list_paths = list_paths
        self._limits = limits
        self._reading = BackgroundQuery(self._read_rest, _LOOK_EVERY_S)
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

    def rows(self, paths: Iterable[Path]) -> KnownRuns:
        """These runs, in this order; without those that were removed in the meantime."""
        until_s = elapsed_s() + self._limits.list_s

        def look_at(numbered: tuple[int, Path]) -> _Entry | None:
            number, path = numbered
            is_late = number >= self._limits.num_always and elapsed_s() > until_s
            return self._look_at(path) if not is_late or path in self._entries else None

        # Whether a lock is taken is asked several times, with pauses: many are asked at once.
        with ThreadPoolExecutor(_NUM_THREADS) as threads:
            entries = list(threads.map(look_at, enumerate(paths)))
        if not all(entry is not None and entry.is_whole for entry in entries):
            self.read_rest()
        return KnownRuns(
            rows=[entry.row for entry in entries if entry is not None and entry.row is not None],
            num_unread=entries.count(None),
        )

    def running(self, paths: Iterable[Path]) -> set[Path]:
        """Those of the runs that a process is training."""
        paths = list(paths)
        with ThreadPoolExecutor(_NUM_THREADS) as threads:
            return {path for path, is_ in zip(paths, threads.map(_is_taken, paths), strict=True)
                    if is_}  # fmt: skip

    def row(self, path: Path) -> ListedRun | None:
        """A run as it is now, as far as its metrics could be read."""
        entry = self._look_at(path)
        if not entry.is_whole:
            self.read_rest()
        return entry.row

    def read_rest(self) -> None:
        """Begins to read in the background what pages could not."""
        self._reading.latest()

    def _read_rest(self) -> None:
        newest = self.paths()[::-1]
        began_s = elapsed_s()
        # First something of each.
        for continues in (False, True):
            for path in newest:
                is_read = False
                while not is_read:
                    is_read = self._reads(path, continues=continues)
                    if elapsed_s() - began_s > _TURN_S:
                        sleep_s(_PAUSE_S)
                        began_s = elapsed_s()

    def _reads(self, path: Path, *, continues: bool) -> bool:
        """Reads a part of a run; whether nothing is left of it."""
        try:
            return self._look_at(path, continues=continues).is_whole or not continues
        except (FlatoutError, OSError):
            return True  # The page that shows it says what is wrong.

    def _look_at(self, path: Path, *, continues: bool = False) -> _Entry:
        """A run, read again where it has changed. continues: reads on in long metrics."""
        with self._lock:
            entry = self._entries.get(path)
        stamp = _stamp(path)
        if (
            entry is not None
            and entry.stamp == stamp
            and not _may_have_ended(entry.row, path)
            and (entry.is_whole or not continues)
        ):
            return entry
        entry = _read(path, stamp, entry, self._limits.part_bytes)
        with self._lock:
            self._entries[path] = entry
        return entry


def _is_text(name: str) -> bool:
    """Whether a name can be in a page; in Linux a folder's name may be any bytes."""
    return name.isascii() or name.encode(errors="replace").decode() == name


def _read(path: Path, stamp: _Stamp, before: _Entry | None, part_bytes: float) -> _Entry:
    """Reads a run; of its metrics, which may be long, only a part of what is new."""
    folder = RunFolder(path)
    known: list[Validated] = []
    size, start, is_whole = stamp[2][1], 0, True
    if before is not None and before.num_read_bytes <= size:
        known, start = before.validations, before.num_read_bytes
    end = start
    try:
        for new, end in validations_from(folder, start):
            for line in new:
                known = _kept([*known, line])
            if end - start >= part_bytes and end < size:
                is_whole = False
                break
    except FlatoutError:
        # `listed_run` finds the same there, and says what is wrong with the run.
        # What has been read so far counts, in case the cause was gone a moment later.
        rest = (line for lines, _ in validations_from(folder, end) for line in lines)
        return _Entry(stamp=stamp, row=listed_run(folder, itertools.chain(known, rest)))
    row = listed_run(folder, known)
    if before is not None and _started_at(row) != _started_at(before.row):
        # A resume has cut the metrics back to a checkpoint.
        return _read(path, stamp, None, part_bytes)
    if row is not None and not is_whole:
        row = msgspec.structs.replace(row, share_read=end / size)
    return _Entry(
        stamp=stamp, row=row, validations=known, num_read_bytes=end, is_whole=is_whole
    )  # fmt: skip


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
