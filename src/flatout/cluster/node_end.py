"""Ends what trains in a run's folder on this node: `python3 -m flatout.cluster.node_end FOLDER`.

Run inside a container: a process started there outlives the `docker exec` that started it.
"""

from __future__ import annotations

import contextlib
import sys
import time

import psutil

_LIMIT_S = 10.0
_POLL_S = 0.05


def end_all(folder: str) -> int:
    """Kills launchers and ranks of a run with all they have started, and waits until they are gone.

    Returns:
        How many processes there were.
    """
    by_pid: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if _is_engine(process.cmdline(), folder):
                for descendant in [process, *process.children(recursive=True)]:
                    by_pid[descendant.pid] = descendant
    for descendant in by_pid.values():
        with contextlib.suppress(psutil.Error):
            descendant.kill()
    end_s = time.monotonic() + _LIMIT_S
    while any(_is_alive(descendant) for descendant in by_pid.values()) and time.monotonic() < end_s:
        time.sleep(_POLL_S)
    return len(by_pid)


def _is_alive(process: psutil.Process) -> bool:
    """A zombie, whose exit code was not collected yet, holds no resources."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _is_engine(words: list[str], folder: str) -> bool:
    return folder in words and any(word.startswith("flatout.engine.") for word in words)


if __name__ == "__main__":
    end_all(sys.argv[1])
