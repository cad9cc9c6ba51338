"""What the computer does now without its GPUs: CPUs, memory, disks, by psutil."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flatout.schema.machine_sample import DiskSample, HostSample
from flatout.system.clock import elapsed_s

# Free space changes slowly, and a file system on a network may not respond at all.
_DISKS_EVERY_S = 2.0
# How long the first sample waits for the disks.
_FIRST_WAIT_S = 0.3
# Of psutil's times: a CPU that does none of these works.
_IDLE = ("idle", "iowait")


class HostSampler:
    """Each sample says what was done since the one before.

    paths: files or folders, of whose file systems the free space is shown.
    """

    def __init__(self, paths: Sequence[str] = ()) -> None:
        # Only here: it takes 20 ms to import.
        import psutil

        self._psutil = psutil
        self._space = _SpaceReader(paths)
        self._times: list[tuple[float, float]] | None = None
        self._bytes: tuple[float, int, int] | None = None

    def take(self) -> HostSample:
        """The present state."""
        psutil = self._psutil
        unread: dict[str, str] = {}
        shares = self._shares()
        if shares is None:
            unread["utilization"] = "it is counted from the second sample on"
        memory = psutil.virtual_memory()
        swap = self._swap(unread)
        read, written = self._rates(unread)
        return HostSample(
            utilization=sum(shares) / len(shares) if shares else None,
            utilizations=tuple(shares or ()),
            num_cpus=psutil.cpu_count(),
            memory_bytes=memory.total,
            available_bytes=memory.available,
            swap_bytes=swap[0],
            swap_used_bytes=swap[1],
            disk_read_bytes_per_s=read,
            disk_written_bytes_per_s=written,
            disks=self._space.take(unread),
            unread=unread,
        )

    def _shares(self) -> list[float] | None:
        """The share of each CPU's time since the sample before in which it worked."""
        now = [_worked_and_all(times) for times in self._psutil.cpu_times(percpu=True)]
        before, self._times = self._times, now
        if before is None or len(before) != len(now):
            return None
        spans = [(b - a, all_b - all_a) for (a, all_a), (b, all_b) in zip(before, now, strict=True)]
        if not all(whole > 0 for _, whole in spans):
            return None
        return [round(min(1.0, max(0.0, worked / whole)), 4) for worked, whole in spans]

    def _swap(self, unread: dict[str, str]) -> tuple[int | None, int | None]:
        try:
            swap = self._psutil.swap_memory()
        except (OSError, RuntimeError) as error:
            # Some containers hide the file that it is in.
            reason = f"the operating system does not report it: {error}"
            unread |= dict.fromkeys(("swap_bytes", "swap_used_bytes"), reason)
            return None, None
        return swap.total, swap.used

    def _rates(self, unread: dict[str, str]) -> tuple[float | None, float | None]:
        names = ("disk_read_bytes_per_s", "disk_written_bytes_per_s")
        try:
            counted: Any = self._psutil.disk_io_counters()
        except (OSError, RuntimeError, NotImplementedError) as error:
            counted, reason = None, f"the operating system does not report it: {error}"
        else:
            reason = "the operating system does not count it"
        if counted is None:
            unread |= dict.fromkeys(names, reason)
            return None, None
        now = (elapsed_s(), counted.read_bytes, counted.write_bytes)
        before, self._bytes = self._bytes, now
        if before is None or now[0] <= before[0]:
            unread |= dict.fromkeys(names, "it is counted from the second sample on")
            return None, None
        took_s = now[0] - before[0]
        return max(0, now[1] - before[1]) / took_s, max(0, now[2] - before[2]) / took_s


def _worked_and_all(times: Any) -> tuple[float, float]:
    # What guests take is in `user` already.
    counted = {k: v for k, v in times._asdict().items() if not k.startswith("guest")}
    whole = sum(counted.values())
    return whole - sum(counted.get(name, 0.0) for name in _IDLE), whole


class _SpaceReader:
    """Reads the free space in a thread: a file system on a network may not respond."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = tuple(paths)
        self._disks: tuple[DiskSample, ...] = ()
        self._thread: threading.Thread | None = None
        self._next_s = 0.0

    def take(self, unread: dict[str, str]) -> tuple[DiskSample, ...]:
        """The newest reading; unread: takes the reason where there is none."""
        now_s = elapsed_s()
        is_busy = self._thread is not None and self._thread.is_alive()
        if self._paths and not is_busy and now_s >= self._next_s:
            is_first = self._thread is None
            self._next_s = now_s + _DISKS_EVERY_S
            self._thread = threading.Thread(target=self._read, daemon=True)
            self._thread.start()
            if is_first:
                self._thread.join(_FIRST_WAIT_S)
        elif is_busy and now_s > self._next_s:
            unread["disks"] = "a file system does not respond"
        return self._disks

    def _read(self) -> None:
        disks: dict[str, DiskSample] = {}
        for path in self._paths:
            mount = _mount(path)
            try:
                usage = shutil.disk_usage(mount)
                is_read_only = _is_read_only(mount)
            except OSError:
                continue
            disks[mount] = DiskSample(
                path=mount,
                total_bytes=usage.total,
                free_bytes=usage.free,
                is_read_only=is_read_only,
            )
        self._disks = tuple(disks.values())


def _is_read_only(mount: str) -> bool:
    if sys.platform == "win32":
        return False
    return bool(os.statvfs(mount).f_flag & os.ST_RDONLY)


def _mount(path: str) -> str:
    """Where the file system that holds a path is mounted."""
    folder = Path(os.path.realpath(path))
    while not os.path.ismount(folder) and folder != folder.parent:
        folder = folder.parent
    return str(folder)
