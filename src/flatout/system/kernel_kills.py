"""Processes that the kernel has ended because memory was full, as it counts them."""

from __future__ import annotations

from pathlib import Path

# Linux tells the number since it was started, those in control groups included.
# Source: https://docs.kernel.org/filesystems/proc.html, and `oom_kill` in mm/vmstat.c.
_COUNTS = Path("/proc/vmstat")


def num_kernel_kills(counts: Path = _COUNTS) -> int | None:
    """How many there were since the system was started; None where it does not tell."""
    try:
        lines = counts.read_text().splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith("oom_kill ")]
    return int(found[0]) if found else None
