"""A program with everything it has started: processor time, memory, reads and writes."""

from __future__ import annotations

import psutil

from flatout.schema.watched import ProcessTreeSample


class ProcessTree:
    """Adds up what is seen of a program's processes; those that have ended keep what they had."""

    def __init__(self, pid: int) -> None:
        self._root: psutil.Process | None = None
        try:
            self._root = psutil.Process(pid)
        except psutil.Error:
            pass  # It has ended already.
        # By process number and time of creation, since numbers are used again.
        self._cpu_s: dict[tuple[int, float], float] = {}
        self._bytes: dict[tuple[int, float], tuple[int, int]] = {}
        self._has_counters = hasattr(psutil.Process, "io_counters")

    def take(self) -> ProcessTreeSample | None:
        """The present state; None once the program has ended."""
        if self._root is None:
            return None
        try:
            processes = [self._root, *self._root.children(recursive=True)]
        except psutil.Error:
            return None
        sizes = [size for process in processes if (size := self._read(process)) is not None]
        if not sizes:
            return None
        counted = list(self._bytes.values())
        return ProcessTreeSample(
            num_processes=len(sizes),
            cpu_s=sum(self._cpu_s.values()),
            rss_bytes=sum(sizes),
            disk_read_bytes=sum(read for read, _ in counted) if counted else None,
            disk_written_bytes=sum(written for _, written in counted) if counted else None,
        )

    def _read(self, process: psutil.Process) -> int | None:
        """The memory of a process; None where it has just ended."""
        try:
            with process.oneshot():
                key = (process.pid, process.create_time())
                times = process.cpu_times()
                size = process.memory_info().rss
                if process.status() == psutil.STATUS_ZOMBIE:
                    return None
        except psutil.Error:
            return None
        self._cpu_s[key] = times.user + times.system
        if self._has_counters:
            try:
                counters = process.io_counters()
                self._bytes[key] = (counters.read_bytes, counters.write_bytes)
            except (psutil.Error, OSError):
                pass  # Of another user, such as a program that has changed to root.
        return int(size)
