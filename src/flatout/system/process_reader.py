"""What some processes of this machine do, and asking one of them to end."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

import psutil

from flatout.schema.top_frame import TopProcess

_GONE = "the process is not visible here: it has ended, or belongs to another container or system"
_FIRST = "it is counted from the second sample on"


class ProcessReader:
    """Reads processes again and again; what never changes of one is read once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[psutil.Process, TopProcess]] = {}

    def take(self, pids: Iterable[int]) -> tuple[TopProcess, ...]:
        """These processes, by number."""
        wanted = sorted(set(pids))
        self._known = {pid: self._known[pid] for pid in wanted if pid in self._known}
        return tuple(self._read(pid) for pid in wanted)

    def _read(self, pid: int) -> TopProcess:
        is_new = pid not in self._known
        try:
            process, fixed = self._known[pid] if not is_new else _opened(pid)
            with process.oneshot():
                share = process.cpu_percent(None) / 100
                memory_bytes = process.memory_info().rss
        except (psutil.Error, OSError):
            self._known.pop(pid, None)
            unread = dict.fromkeys(("name", "user", "utilization", "memory_bytes"), _GONE)
            return TopProcess(pid=pid, unread=unread)
        self._known[pid] = process, fixed
        return TopProcess(
            pid=pid,
            name=fixed.name,
            user=fixed.user,
            is_mine=fixed.is_mine,
            created_at=fixed.created_at,
            utilization=None if is_new else share,
            memory_bytes=memory_bytes,
            unread={"utilization": _FIRST} if is_new else {},
        )


def _opened(pid: int) -> tuple[psutil.Process, TopProcess]:
    process = psutil.Process(pid)
    with process.oneshot():
        fixed = TopProcess(
            pid=pid,
            name=process.name(),
            user=_user(process),
            is_mine=_is_mine(process),
            created_at=process.create_time(),
        )
    return process, fixed


def _user(process: psutil.Process) -> str | None:
    try:
        return process.username()
    except (psutil.Error, KeyError):
        return None


def _is_mine(process: psutil.Process) -> bool:
    if sys.platform != "win32":
        return bool(process.uids().real == os.getuid())
    try:
        return bool(process.username() == psutil.Process().username())
    except psutil.Error:
        return False


def terminate(pid: int, created_at: float) -> str | None:
    """Asks a process to end (SIGTERM; under Windows it is ended); gives why it was not possible.

    created_at: when it was started, since its number may be another process's by now.
    """
    try:
        process = psutil.Process(pid)
        if process.create_time() != created_at:
            return "it has ended"
        process.terminate()
    except psutil.NoSuchProcess:
        return "it has ended"
    except psutil.AccessDenied:
        return "it belongs to another user"
    except OSError as error:
        return error.strerror or str(error)
    return None
