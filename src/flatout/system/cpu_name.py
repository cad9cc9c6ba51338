"""Names of processor and driver, and the number of cores that this process may use: a recipe
found on one holds on no other.
"""

from __future__ import annotations

import math
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import psutil

from flatout.system.atomic_files import mapped_os_errors


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
    cores = float(psutil.cpu_count(logical=False) or os.cpu_count() or 1)
    if sys.platform == "linux":
        cores = min(cores, len(os.sched_getaffinity(0)), cpu_quota(Path("/")))
    return max(1, math.ceil(cores))


def num_usable_threads(offered: int) -> int:
    """Threads that compute together, of those that torch offers, which knows nothing of what a
    container may use; but what a user has set holds.
    """
    return offered if "OMP_NUM_THREADS" in os.environ else min(offered, num_usable_cores())


def cpu_quota(root: Path) -> float:
    """Processors' worth of time that cgroups let this process have; infinite without a limit.

    Args:
        root: of the file system.

    Source: https://docs.kernel.org/admin-guide/cgroup-v2.html (cpu.max),
    https://docs.kernel.org/scheduler/sched-bwc.html (version 1).
    """
    return min(_quotas(root), default=math.inf)


def _quotas(root: Path) -> Iterator[float]:
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        mounted = root / "sys/fs/cgroup" / ("cpu" if controllers else "")
        # Every group above may limit it, too. In a container its own may be the root that is seen.
        for folder in (PurePosixPath(group), *PurePosixPath(group).parents):
            cgroup = mounted / folder.relative_to("/")
            quota, _, period = _read(cgroup / "cpu.max").partition(" ")
            if not quota:
                quota = _read(cgroup / "cpu.cfs_quota_us")
                period = _read(cgroup / "cpu.cfs_period_us")
            if quota.strip().isdigit() and period.strip().isdigit() and int(period):
                yield int(quota) / int(period)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        # Most groups do not limit it, and have no such file.
        return ""
