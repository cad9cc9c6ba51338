"""Main memory: all of it, what is free, what a container may use."""

from __future__ import annotations

import re

from flatout.schema.machine import Memory
from flatout.system.host_system import System, Unread
from flatout.system.probes.cgroup import memory_limit_bytes, num_killed


def probe_memory(system: System) -> tuple[Memory, dict[str, str]]:
    """Main memory, and why what is None is None."""
    if system.platform != "linux":
        calls = system.calls()
        memory = Memory(total_bytes=calls.total_bytes, available_bytes=calls.available_bytes)
        reason = f"{system.platform} did not report it"
    else:
        text = system.read("/proc/meminfo")
        known = {} if isinstance(text, Unread) else parse_meminfo(text)
        reason = text.reason if isinstance(text, Unread) else "/proc/meminfo does not show it"
        total_bytes = known.get("MemTotal")
        memory = Memory(
            total_bytes=total_bytes,
            # WSL 1 and kernels before 3.14 have no MemAvailable; MemFree is less, never more.
            available_bytes=known.get("MemAvailable", known.get("MemFree")),
            limit_bytes=memory_limit_bytes(system, total_bytes),
            swap_bytes=known.get("SwapTotal"),
            num_killed=num_killed(system),
        )
    reasons = dict.fromkeys(("total_bytes", "available_bytes", "swap_bytes"), reason)
    reasons["num_killed"] = "no cgroup counts them"
    return memory, {
        f"memory.{name}": why for name, why in reasons.items() if getattr(memory, name) is None
    }


def parse_meminfo(text: str) -> dict[str, int]:
    """Bytes by name from the text of /proc/meminfo."""
    rows = re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE)
    return {name: int(number) * 1024 for name, number in rows}
