"""Memory that this process may still take, and the kernel's count of processes it ran out for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil

_GROUPS = Path("/sys/fs/cgroup")

# Names of a group's files in versions 2 and 1: the limit, what is used, and of that, which part is
# only a copy of files and given up when it is needed.
# Source: https://docs.kernel.org/admin-guide/cgroup-v2.html#memory and cgroup-v1/memory.html
_FILES = (
    ("", "memory.max", "memory.current", "inactive_file"),
    ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def free_memory_bytes(groups: Path = _GROUPS, own: Path = Path("/proc/self/cgroup")) -> int:
    """Main memory that can still be taken without taking it from anyone.

    Args:
        groups: where control groups are listed. own: the file that shows which of them this process
            is in.
    """
    return min([psutil.virtual_memory().available, *_left_in_groups(groups, own)])


def left_in_groups_bytes(pid: int, groups: Path = _GROUPS) -> int | None:
    """Main memory that the control groups of a process let it still take; None without a limit."""
    return min(_left_in_groups(groups, Path(f"/proc/{pid}/cgroup")), default=None)


def _left_in_groups(groups: Path, own: Path) -> Iterator[int]:
    """The rest of the limits of this process's group and each one above it."""
    for controller, limit_name, used_name, reclaimed_name in _FILES:
        path = _own_path(_text(own), controller)
        parts = [part for part in path.split("/") if part] if path is not None else []
        # In a container the path may be the one outside, which is missing: then the root is.
        for length in range(len(parts) + 1 if path is not None else 0):
            folder = groups.joinpath(controller, *parts[:length])
            limit, used = _text(folder / limit_name), _text(folder / used_name)
            if not (limit.strip().isdigit() and used.strip().isdigit()):
                # "max" says that there is no limit.
                continue
            lines = dict(line.partition(" ")[::2] for line in _lines(folder / "memory.stat"))
            yield max(0, int(limit) - int(used) + int(lines.get(reclaimed_name, 0)))


def _own_path(text: str, controller: str) -> str | None:
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller in controllers.split(","):
            return path
    return None


def _lines(path: Path) -> list[str]:
    return _text(path).splitlines()


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        # Not Linux, or a group that reports less: then no limit is visible.
        return ""


# Linux reports the number since it was started, those in control groups included.
# Source: https://docs.kernel.org/filesystems/proc.html, and `oom_kill` in mm/vmstat.c.
_COUNTS = Path("/proc/vmstat")


def num_kernel_kills(counts: Path = _COUNTS) -> int | None:
    """The number since the system was started; None if it is not reported."""
    try:
        lines = counts.read_text().splitlines()
    except OSError:
        return None
    kills = [line.split()[1] for line in lines if line.startswith("oom_kill ")]
    return int(kills[0]) if kills else None
