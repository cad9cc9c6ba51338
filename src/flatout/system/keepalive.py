"""Connections of this process that end by themselves when their other end cannot be reached.

Where a network is cut, nothing arrives any more, and nobody says so: whoever waits for an answer
waits until he loses patience. The kernel can ask instead, and give up. A peer that is merely slow,
or stopped, is answered for by its kernel, and is waited for.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Iterator

# What Linux and macOS show of a process's open files; Windows has nothing of the kind.
_OPEN_FILES = "/dev/fd"
_ASKED_TIMES = 6


def notice_cuts(limit_s: float) -> int:
    """Has the kernel end each TCP connection of this process that leads nowhere for so long.

    Source: man 7 tcp, of TCP_KEEPIDLE and TCP_USER_TIMEOUT. The first is about a connection on
    which nothing is under way, the second about one on which something is.

    Args:
        limit_s: how long the other end may not be reached.

    Returns:
        How many connections there are.
    """
    every_s = max(1, round(limit_s / (2 * _ASKED_TIMES)))
    options = {
        "TCP_KEEPIDLE": max(1, round(limit_s / 2)),
        "TCP_KEEPALIVE": max(1, round(limit_s / 2)),  # As macOS calls it.
        "TCP_KEEPINTVL": every_s,
        "TCP_KEEPCNT": _ASKED_TIMES,
        "TCP_USER_TIMEOUT": round(limit_s * 1000),
    }
    numbers = {getattr(socket, name, None): value for name, value in options.items()}
    count = 0
    for one in _connections():
        count += 1
        # Something that is like TCP may lack an option of it.
        with contextlib.suppress(OSError):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for number, value in numbers.items():
                if number is not None:
                    one.setsockopt(socket.IPPROTO_TCP, number, value)
    return count


def _connections() -> Iterator[socket.socket]:
    """This process's TCP sockets, whoever has made them, each under a number of its own."""
    try:
        names = os.listdir(_OPEN_FILES)
    except OSError:
        return
    for name in names:
        # The listing's own number is gone by now.
        with contextlib.suppress(OSError):
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as one:
                is_internet = one.family in (socket.AF_INET, socket.AF_INET6)
                if is_internet and one.type == socket.SOCK_STREAM:
                    yield one
