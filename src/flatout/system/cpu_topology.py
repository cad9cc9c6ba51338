"""The CPUs of this process that share a core, and their caches, by the kernel's files."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from flatout.schema.cpu_topology import LogicalCpu, Topology

# By the kernel's scale the fastest core has 1024. A rough line: efficiency cores have up to about
# half of that, cores of a middle size more. What is chosen by it is measured before it is used.
_PERFORMANCE_SHARE = 0.6
# Of one CPU; those in use have four or five.
_MOST_CACHES = 8
_CACHE_UNITS = {"": 1, "K": 2**10, "M": 2**20}


def read_topology() -> Topology:
    """The topology of this machine, as far as this process may use it; only Linux reports it."""
    if sys.platform != "linux":
        return Topology(problem="only Linux reports which CPUs share a core")
    return parse_topology(os.sched_getaffinity(0), _text)


def parse_topology(usable: Iterable[int], read: Callable[[str], str | None]) -> Topology:
    """The topology of these CPUs.

    Args:
        usable: their numbers.
        read: gives the text of a file under /sys/devices, None where there is none.

    Source: Documentation/ABI/{stable,testing}/sysfs-devices-system-cpu of the Linux kernel.
    """
    indices = sorted(usable)
    # Not `core_id`: it begins again in each cluster of an ARM processor and in each socket.
    cores = {index: read(f"system/cpu/cpu{index}/topology/thread_siblings_list")
             for index in indices}  # fmt: skip
    fast = _performance_cpus(indices, read)
    cpus = tuple(
        LogicalCpu(index=index, core=core.strip(), is_performance=index in fast)
        for index, core in cores.items()
        if core is not None
    )
    if len(cpus) < len(indices):
        return Topology(problem="/sys does not show which CPUs share a core")
    return Topology(cpus=cpus)


def last_cache_bytes() -> int:
    """The last caches of the CPUs of this process, together; 0 where they are unknown."""
    if sys.platform != "linux":
        return 0
    return parse_last_caches(os.sched_getaffinity(0), _text)


def parse_last_caches(usable: Iterable[int], read: Callable[[str], str | None]) -> int:
    """The bytes of the last caches of these CPUs, each once; see parse_topology."""
    last: dict[tuple[str, str], int] = {}
    for index in sorted(usable):
        caches = []
        for number in range(_MOST_CACHES):
            names = ("level", "size", "shared_cpu_list")
            folder = f"system/cpu/cpu{index}/cache/index{number}"
            level, size, shared = (read(f"{folder}/{name}") for name in names)
            found = re.fullmatch(r"([0-9]+)([KM]?)\s*", size or "")
            if level is not None and shared is not None and found is not None:
                num_bytes = int(found[1]) * _CACHE_UNITS[found[2]]
                caches.append((level.strip(), shared.strip(), num_bytes))
        if caches:
            level, shared, num_bytes = max(caches)
            last[level, shared] = num_bytes
    return sum(last.values())


def parse_cpu_list(text: str) -> frozenset[int]:
    """CPUs as the kernel lists them: `0-3,8`.

    Raises:
        ValueError: it is no such list.
    """
    cpus: set[int] = set()
    for part in text.strip().split(",") if text.strip() else ():
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


def _performance_cpus(indices: list[int], read: Callable[[str], str | None]) -> frozenset[int]:
    """All of them, if no difference is reported."""
    # Intel's hybrid processors have a performance counter unit for each kind of core.
    fast, slow = read("cpu_core/cpus"), read("cpu_atom/cpus")
    if fast is not None and slow is not None:
        return parse_cpu_list(fast)
    texts = {index: read(f"system/cpu/cpu{index}/cpu_capacity") for index in indices}
    capacities = {index: int(text) for index, text in texts.items() if text is not None}
    if len(capacities) < len(indices):
        return frozenset(indices)
    line = _PERFORMANCE_SHARE * max(capacities.values())
    return frozenset(index for index, capacity in capacities.items() if capacity >= line)


def _text(path: str) -> str | None:
    try:
        return Path("/sys/devices", path).read_text(errors="replace")
    except OSError:
        # A container may hide it, and a CPU may be gone by now: the topology is then not known.
        return None
