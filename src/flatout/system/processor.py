"""What processor and driver call themselves: a recipe found on one holds on no other."""

from __future__ import annotations

import platform
from pathlib import Path

from flatout.system.store import mapped_os_errors


def processor_name() -> str:
    """The processor's name, as far as the operating system tells it."""
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
