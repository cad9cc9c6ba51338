"""What a process may have at most: files, processes, locked memory."""

from __future__ import annotations

import re

from flatout.nouns.surroundings import Limits
from flatout.system.system import System, Unread

_ROWS = {
    "open_files": "Max open files",
    "processes": "Max processes",
    "locked_bytes": "Max locked memory",
}


def probe_limits(system: System) -> tuple[Limits | None, dict[str, str]]:
    """The soft limits, and why one is None; None altogether where there are no such limits."""
    if system.platform != "linux":
        return None, {}
    text = system.read("/proc/self/limits")
    if isinstance(text, Unread):
        return None, {"limits": text.reason}
    found = parse_limits(text)
    reasons = {f"limits.{field}": "unlimited" for field in _ROWS if getattr(found, field) is None}
    return found, reasons


def parse_limits(text: str) -> Limits:
    """The soft limits in /proc/self/limits."""
    found = {
        field: re.search(rf"^{name}\s+(\d+)\s", text, re.MULTILINE) for field, name in _ROWS.items()
    }
    return Limits(**{field: int(match[1]) for field, match in found.items() if match})
