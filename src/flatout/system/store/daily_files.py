"""Samples of the machine, a file for each day, with a bound on the disk."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from flatout.errors import FlatoutError, UsageError
from flatout.schema.alarm import Alarm
from flatout.schema.machine_sample import MachineSample
from flatout.system import atomic_files
from flatout.system.paths import state_path
from flatout.system.store.sample_file import SampleFile

_NAME = re.compile(r"(\d{4}-\d{2}-\d{2})\.jsonl")
# The sizes of files are added up after so many samples.
_CHECK_EVERY = 100
LOCK = "lock"
ALARMS = "alarms.jsonl"
# About a thousand.
_MOST_ALARM_BYTES = 1 << 20


class DailyFiles:
    """Appends samples to the file of their day (UTC), and removes the oldest days.

    Args:
        folder: made if missing; one process writes there at a time.
        days: how many days are kept, today's among them.
        keep_bytes: how much all files may take. If today alone has more, its older half goes.

    Raises:
        UsageError: monitor-running, folder-not-writable.
    """

    def __init__(self, folder: Path, *, days: int, keep_bytes: int) -> None:
        self._folder = folder
        self._days = days
        self._keep_bytes = keep_bytes
        self._file: SampleFile | None = None
        self._day = ""
        self._num_unchecked = _CHECK_EVERY
        with atomic_files.mapped_os_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        self._lock = atomic_files.FileLock(folder / LOCK)
        if not self._lock.acquire():
            raise UsageError(
                "monitor-running",
                "`flatout monitor` is already running.",
                because=f"it holds {folder / LOCK}",
                fix="stop it with Ctrl-C or SIGTERM, or look at the machine with `flatout top`",
            )

    def __enter__(self) -> DailyFiles:
        return self

    def __exit__(self, *exception: object) -> None:
        with contextlib.suppress(FlatoutError):
            self._close()
        self._lock.release()

    def append(self, sample: MachineSample) -> None:
        """Adds a sample.

        Raises:
            FlatoutError: it could not be written, as on a full disk; the next one may be.
        """
        day = _day(sample.at)
        if day != self._day:
            self._close()
            self._day = day
            self._num_unchecked = _CHECK_EVERY
        if self._num_unchecked >= _CHECK_EVERY:
            self._num_unchecked = 0
            self._make_room(day)
        self._num_unchecked += 1
        if self._file is None:
            self._file = SampleFile(self._folder / f"{day}.jsonl")
        self._file.append(sample)

    def append_alarm(self, alarm: Alarm) -> None:
        """Adds an alarm; of many, the older half is removed.

        Raises:
            FlatoutError: it could not be written.
        """
        path = self._folder / ALARMS
        if size_bytes(path) > _MOST_ALARM_BYTES:
            _halve(path)
        lines = atomic_files.Lines(path)
        try:
            lines.append(alarm)
        finally:
            lines.close()

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.__exit__()

    def _make_room(self, day: str) -> None:
        files = list(day_files(self._folder))
        oldest = (datetime.fromisoformat(day) - timedelta(days=self._days - 1)).date().isoformat()
        sizes = {path: size_bytes(path) for _, path in files}
        for name, path in files:
            is_over = sum(sizes.values()) > self._keep_bytes
            if name == day or not (name < oldest or is_over):
                continue
            with atomic_files.mapped_os_errors(path):
                path.unlink(missing_ok=True)
            del sizes[path]
        today = self._folder / f"{day}.jsonl"
        if sum(sizes.values()) > self._keep_bytes and today in sizes:
            self._close()
            _halve(today)


def monitor_folder() -> Path:
    """The folder of `flatout monitor`."""
    return state_path("monitor")


def is_monitor_running() -> bool:
    """Whether a monitor writes there."""
    return atomic_files.FileLock(monitor_folder() / LOCK).is_taken()


def day_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """The days that are kept and their files, oldest first."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return
    for name in names:
        match = _NAME.fullmatch(name)
        if match:
            yield match[1], folder / name


def _day(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).date().isoformat()


def read_alarms(folder: Path) -> list[Alarm]:
    """The alarms that are kept, oldest first.

    Raises:
        RunFailed: damaged-file.
    """
    return atomic_files.read_lines(folder / ALARMS, Alarm)


def size_bytes(path: Path) -> int:
    """The size of a file; 0 of a missing one."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _halve(path: Path) -> None:
    """Removes the older half of a file's lines."""
    with atomic_files.mapped_os_errors(path):
        with atomic_files.open_file(path) as file:
            file.seek(size_bytes(path) // 2)
            file.readline()
            newer = file.read()
        atomic_files.write_atomically(path, newer)
