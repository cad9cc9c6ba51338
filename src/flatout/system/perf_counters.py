"""Hardware counters of this process, from Linux perf events, as far as it may read its own."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import struct
import sys
from collections.abc import Sequence

# The number of perf_event_open.
_CALLS = {"x86_64": 298, "aarch64": 241}
# The kind and the number of each event.
# Source: Linux, include/uapi/linux/perf_event.h (perf_type_id, perf_hw_id, perf_sw_ids)
_EVENTS = {
    "cycles": (0, 0), "instructions": (0, 1), "cache_misses": (0, 3), "page_faults": (1, 2),
}  # fmt: skip
# Threads that are started later are counted, too; not the kernel, whose work few may count.
_FLAGS = (1 << 1) | (1 << 5) | (1 << 6)
# With the times for which an event was wanted, and counted: many events share few counters.
_TIMES = 0b11
_CLOSE_ON_EXEC = 1 << 3
# The first version of perf_event_attr, which every kernel takes.
_ATTRIBUTES = struct.Struct("=IIQQQQQIIQ")
_READING = struct.Struct("=QQQ")


class PerfCounters:
    """Counts since it was made, by all threads of this process. Use as a context manager.

    reasons: event -> why it is not counted.
    """

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}
        self._files: dict[str, list[int]] = {}
        call = _CALLS.get(platform.machine())
        if sys.platform != "linux" or call is None or struct.calcsize("P") != 8:
            reason = "it is counted on Linux only, with x86-64 or 64-bit Arm"
            self.reasons = dict.fromkeys(_EVENTS, reason)
            return
        for event in _EVENTS:
            try:
                self._files[event] = _opened(call, event)
            except OSError as error:
                self.reasons[event] = _reason(error)

    def __enter__(self) -> PerfCounters:
        return self

    def __exit__(self, *exception: object) -> None:
        for file in (file for files in self._files.values() for file in files):
            os.close(file)
        self._files.clear()

    def taken(self) -> dict[str, float]:
        """The counts of what can be counted."""
        counts: dict[str, float] = {}
        for event, files in self._files.items():
            readings = [_READING.unpack(os.read(file, _READING.size)) for file in files]
            count = scaled(readings)
            if count is None:
                self.reasons[event] = "the processor had no counter left for it"
            else:
                counts[event] = count
        return counts


def scaled(readings: Sequence[tuple[int, int, int]]) -> float | None:
    """The count of all threads as if each had been counted all the time.

    Args:
        readings: of each thread, its count, and the times for which one was wanted and made.

    Returns:
        None: none was counted for any time.
    """
    # A thread that did not run was not counted, either.
    parts = [count * wanted / counted for count, wanted, counted in readings if counted]
    return sum(parts) if parts else None


def _opened(call: int, event: str) -> list[int]:
    """A file for each thread.

    Raises:
        OSError: it cannot be counted.
    """
    files: list[int] = []
    try:
        for thread in os.listdir("/proc/self/task"):
            # It may have ended meanwhile.
            with contextlib.suppress(ProcessLookupError):
                files.append(_open(call, event, int(thread)))
    except OSError:
        for file in files:
            os.close(file)
        raise
    return files


def _open(call: int, event: str, thread: int) -> int:
    kind, number = _EVENTS[event]
    attributes = _ATTRIBUTES.pack(
        kind, _ATTRIBUTES.size, number, 0, 0, _TIMES, _FLAGS, 0, 0, 0
    )  # fmt: skip
    library = ctypes.CDLL(None, use_errno=True)
    library.syscall.restype = ctypes.c_long
    file = library.syscall(
        ctypes.c_long(call), attributes, ctypes.c_int(thread), ctypes.c_int(-1), ctypes.c_int(-1),
        ctypes.c_ulong(_CLOSE_ON_EXEC),
    )  # fmt: skip
    if file < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(file)


def _reason(error: OSError) -> str:
    if error.errno in (errno.EPERM, errno.EACCES, errno.ENOSYS):
        return "this process may not count it: kernel.perf_event_paranoid, or its container"
    if error.errno in (errno.ENOENT, errno.EOPNOTSUPP, errno.ENODEV):
        return "the processor shows no such counter here, as in many virtual machines"
    return error.strerror or str(error)
