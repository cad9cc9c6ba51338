"""Names of processor and driver, and the number of cores that this process may use: a recipe
found on one holds on no other.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path

import psutil

from flatout.system.atomic_files import mapped_os_errors
from flatout.system.usable_cpus import num_usable_of


def processor_name() -> str:
    """The processor's name, as far as the operating system reports it."""
    for line in _text(Path("/proc/cpuinfo")).splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def driver_name() -> str:
    """The NVIDIA kernel module's own line; empty where there is none, as under WSL and Windows."""
    return _text(Path("/proc/driver/nvidia/version")).partition("\n")[0]


def _text(path: Path) -> str:
    if not path.exists():
        return ""
    with mapped_os_errors(path):
        return path.read_text(errors="replace")


def num_usable_cores() -> int:
    """Physical cores that this process may use: not those beyond its affinity, nor beyond the
    time that its container is given.
    """
    return num_usable_of(psutil.cpu_count(logical=False) or os.cpu_count() or 1)


def num_usable_threads(offered: int) -> int:
    """Threads that compute together, of those that torch offers, which knows nothing of what a
    container may use; but what a user has set holds.
    """
    return offered if "OMP_NUM_THREADS" in os.environ else min(offered, num_usable_cores())
