"""What is new of the runs that train on this machine, again and again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from flatout.errors import FlatoutError
from flatout.schema.alarm import RankProgress, WorkerSample
from flatout.schema.run_lines import Line, Started
from flatout.system import atomic_files
from flatout.system.clock import elapsed_s
from flatout.system.store.run_finder import RunFinder
from flatout.system.store.run_folder import RunFolder
from flatout.system.store.run_tail import RunTail
from flatout.system.worker_watch import is_worker, worker_sample

# A run that has ended is read so much longer: its last lines, and whether it is resumed.
_KEPT_S = 120.0


class RunReading:
    """What is new of one run.

    folder: the run. is_in_use: a worker trains it, or is beginning to.
    """

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.is_in_use = True
        self.lines: list[Line] = []
        self.ranks: list[RankProgress] = []
        self.worker: WorkerSample | None = None
        self.used_at_s = elapsed_s()
        self._tail = RunTail(folder)
        self._started: Started | None = None
        # Whether its worker is on this machine; None where that was not looked up yet.
        self._is_worker_here: bool | None = None
        self._rank_offsets: dict[Path, int] = {}

    def read(self) -> None:
        """Reads what is new.

        Raises:
            FlatoutError: a file of the run cannot be read.
        """
        # First: what was new before must not count again if something cannot be read.
        self.lines, self.ranks, self.worker = [], [], None
        # Before the lines: what was written before the end is then read for certain.
        self.is_in_use = self.folder.is_in_use()
        if self.is_in_use:
            self.used_at_s = elapsed_s()
        self.lines = self._tail.new_lines()
        for line in self.lines:
            if isinstance(line, Started):
                self._started, self._is_worker_here = line, None
        if self._started is None:
            return
        if self.is_in_use:
            self.worker = self._worker(self._started)
        if self._started.num_ranks > 1:
            self.ranks = list(self._rank_lines())

    def _worker(self, started: Started) -> WorkerSample | None:
        if self._is_worker_here is None:
            self._is_worker_here = is_worker(started.pid, started.at, self.folder.path)
        return worker_sample(started.pid, started.at) if self._is_worker_here else None

    def _rank_lines(self) -> Iterator[RankProgress]:
        for path in sorted(self.folder.path.glob("rank*.jsonl")):
            offset = self._rank_offsets.get(path, 0)
            lines, self._rank_offsets[path] = atomic_files.read_lines_from(
                path, offset, RankProgress
            )
            yield from lines


class RunWatch:
    """Finds the user's runs that train, and gives what is new of each."""

    def __init__(self) -> None:
        self._readings: dict[Path, RunReading] = {}
        self._finder = RunFinder(RunFolder.is_in_use)

    def take(self) -> list[RunReading]:
        """What is new of every run that trains or has just ended."""
        for folder in self._finder.take(self._readings):
            self._readings[folder.path] = RunReading(folder)
        read = []
        for path, reading in list(self._readings.items()):
            try:
                reading.read()
            except (FlatoutError, OSError):
                # Removed or damaged, which `flatout runs` names; or only for a moment.
                del self._readings[path]
                continue
            read.append(reading)
            if not reading.is_in_use and elapsed_s() - reading.used_at_s > _KEPT_S:
                del self._readings[path]
        return read
