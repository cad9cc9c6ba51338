"""For how long programs of this machine have waited for its disks."""

from __future__ import annotations

import re
import sys

from flatout.system.host_system import Unread

_FILE = "/proc/pressure/io"


def disk_wait_s() -> float | Unread:
    """Seconds since the machine's start in which at least one program waited for a disk.

    Source: Linux, Documentation/accounting/psi.rst.
    """
    if sys.platform != "linux":
        return Unread("the operating system does not count it")
    try:
        with open(_FILE, encoding="ascii") as file:
            text = file.read()
    except OSError as error:
        return Unread(f"{_FILE}: {error.strerror or error}")
    return parse_pressure(text)


def parse_pressure(text: str) -> float | Unread:
    """The total of `some`, which the file has in microseconds."""
    found = re.search(r"^some .*\btotal=([0-9]+)", text, re.MULTILINE)
    return int(found[1]) * 1e-6 if found else Unread(f"{_FILE} has no total")
