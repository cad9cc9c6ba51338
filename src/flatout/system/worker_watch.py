"""What the processes of a run's worker use, read from outside."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Any

from flatout.schema.alarm import WorkerSample

# What `schema/worker_command.py` starts.
_WORKERS = ("flatout.engine.training.worker", "flatout.engine.launch")


def is_worker(pid: int, started_at: float, folder: Path) -> bool:
    """Whether the process with that number on this machine trains a run.

    It may only have the number of a worker on another machine or in a container: the run's own is
    not younger, and its command line names the folder, or it holds the folder's lock.

    started_at: when the worker began to train. folder: of the run.
    """
    # Only here: it takes 20 ms to import.
    import psutil

    try:
        process = psutil.Process(pid)
        if process.create_time() > started_at + 1.0:
            return False
        argv = process.cmdline()
        real = os.path.realpath(folder)
        if any(os.path.isabs(one) and os.path.realpath(one) == real for one in argv):
            return True
        if any(module in argv for module in _WORKERS):
            return False
        # A notebook or a script that trains by itself.
        if sys.platform == "win32":
            # There, to list files that are open may block.
            return "python" in process.name().lower()
        lock = os.path.join(real, "lock")
        return any(os.path.realpath(file.path) == lock for file in process.open_files())
    except (psutil.Error, OSError):
        return False


def worker_sample(pid: int, started_at: float) -> WorkerSample | None:
    """The worker with that number and its children; None where it is not on this machine.

    started_at: when it began to train. A process that is younger has only the same number, as
    where the worker is in a container.
    """
    # Only here: it takes 20 ms to import.
    import psutil

    from flatout.system.free_memory import left_in_groups_bytes

    try:
        process = psutil.Process(pid)
        if process.create_time() > started_at + 1.0:
            return None
        status = process.status()
        if status == psutil.STATUS_ZOMBIE:
            return None
        family = [process, *process.children(recursive=True)]
    except (psutil.Error, OSError):
        return None
    times = [seconds for one in family if (seconds := _cpu_s(one)) is not None]
    sizes = [size for one in family if (size := _own_bytes(one)) is not None]
    return WorkerSample(
        pid=pid,
        is_stopped=status in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP),
        cpu_s=sum(times),
        memory_bytes=sum(sizes) if sizes else None,
        left_bytes=left_in_groups_bytes(pid),
    )


def _cpu_s(process: Any) -> float | None:
    import psutil

    with contextlib.suppress(psutil.Error, OSError):
        times = process.cpu_times()
        # A child that has ended is counted by its parent, where the system does so.
        return float(sum(times[:4]))
    return None


def _own_bytes(process: Any) -> int | None:
    import psutil

    with contextlib.suppress(psutil.Error, OSError):
        memory = process.memory_info()
        # Where data is read through a mapped file, its pages are shared, and can be given back.
        return int(getattr(memory, "private", memory.rss - getattr(memory, "shared", 0)))
    return None
