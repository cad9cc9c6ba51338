"""Kills a process with everything it has started."""

from __future__ import annotations

import contextlib
import os
import signal
import sys


def kill_tree(pid: int) -> None:
    """Kills a process, the group that it leads, and its descendants in other groups.

    The process itself goes first on POSIX: it would report its children's deaths as a failure of
    theirs. Windows has no groups, and a child whose parent is gone is no longer found: last there.
    """
    # Only here: it takes 20 ms to import.
    import psutil

    descendants: list[psutil.Process] = []
    with contextlib.suppress(psutil.Error):
        # torchrun puts its ranks into sessions of their own.
        descendants = psutil.Process(pid).children(recursive=True)
    if sys.platform != "win32":
        # macOS says PermissionError when only zombies are left.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            leads = os.getpgid(pid) == pid
            os.killpg(pid, signal.SIGKILL) if leads else os.kill(pid, signal.SIGKILL)
    for process in descendants:
        with contextlib.suppress(psutil.Error):
            process.kill()
    if sys.platform == "win32":
        with contextlib.suppress(psutil.Error):
            psutil.Process(pid).kill()
