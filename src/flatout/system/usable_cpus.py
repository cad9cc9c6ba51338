"""How many CPUs this process may use, in any interpreter: without psutil."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath


def num_usable_cpus() -> int:
    """Logical CPUs, of which a core may have two: not those beyond the affinity of this process,
    nor beyond the time that its container is given.
    """
    return num_usable_of(os.cpu_count() or 1)


def num_usable_of(there: int) -> int:
    """Of so many cores or CPUs, those that this process may use."""
    usable = float(there)
    if sys.platform == "linux":
        usable = min(usable, len(os.sched_getaffinity(0)), cpu_quota(Path("/")))
    return max(1, math.ceil(usable))


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
