"""The limits of a container or a service manager on this process: cgroups, versions 1 and 2."""

from __future__ import annotations

import re
from collections.abc import Iterator

from flatout.system.host_system import System

_ROOT = "/sys/fs/cgroup"


def cpu_quota(system: System) -> float | None:
    """Processors' worth of time the process may use (1.5, say), None where nothing limits it.

    Source: https://docs.kernel.org/admin-guide/cgroup-v2.html (cpu.max),
    https://docs.kernel.org/scheduler/sched-bwc.html (version 1).
    """
    quotas = [_ratio(text.split()) for text in _limit_texts(system, "", "cpu.max")]
    for folder in _folders(system, "cpu"):
        texts = (
            system.read(f"{folder}/cpu.cfs_quota_us"),
            system.read(f"{folder}/cpu.cfs_period_us"),
        )
        quotas.append(_ratio([text.strip() for text in texts if isinstance(text, str)]))
    return min((quota for quota in quotas if quota is not None), default=None)


def memory_limit_bytes(system: System, total_bytes: int | None) -> int | None:
    """Memory the process may use, None where nothing limits it below the machine's own."""
    texts = [
        *_limit_texts(system, "", "memory.max"),
        *_limit_texts(system, "memory", "memory.limit_in_bytes"),
    ]
    # Version 1 says "no limit" with a number near 2**63.
    bound = total_bytes or 2**60
    limits = [int(text) for text in texts if text.strip().isdigit()]
    return min((limit for limit in limits if limit < bound), default=None)


def num_killed(system: System) -> int | None:
    """Processes of this group that were killed for memory; version 2 alone counts them.

    Source: https://docs.kernel.org/admin-guide/cgroup-v2.html (memory.events, oom_kill).
    """
    matches = [
        re.search(r"^oom_kill (\d+)$", text, re.MULTILINE)
        for text in _limit_texts(system, "", "memory.events")
    ]
    counts = [int(match[1]) for match in matches if match]
    # The nearest group: those above count other programs, too.
    return counts[0] if counts else None


def _ratio(parts: list[str]) -> float | None:
    # "max" and -1 say that there is no limit.
    if len(parts) != 2 or not all(part.isdigit() for part in parts) or int(parts[1]) == 0:
        return None
    return int(parts[0]) / int(parts[1])


def _limit_texts(system: System, controller: str, name: str) -> Iterator[str]:
    for folder in _folders(system, controller):
        text = system.read(f"{folder}/{name}")
        if isinstance(text, str):
            yield text


def _folders(system: System, controller: str) -> Iterator[str]:
    """The process's group and all above it: each of them may set a limit. "" is version 2."""
    path = parse_group(_text(system, "/proc/self/cgroup"), controller)
    if path is None:
        return
    root = f"{_ROOT}/{controller}" if controller else _ROOT
    # In a container the path may be the one outside, which is missing: then only the root is.
    parts = [part for part in path.split("/") if part]
    for length in range(len(parts), -1, -1):
        yield "/".join([root, *parts[:length]])


def parse_group(text: str, controller: str) -> str | None:
    """The path of a controller's group in /proc/self/cgroup; "" asks for version 2's only one."""
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        controllers, separator, path = rest.partition(":")
        if separator and controller in controllers.split(","):
            return path
    return None


def _text(system: System, path: str) -> str:
    text = system.read(path)
    return text if isinstance(text, str) else ""
