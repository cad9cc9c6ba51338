"""A port for a program that must be given its number."""

from __future__ import annotations

import contextlib
import random
import socket

# Below those that Linux, macOS and Windows assign to sockets that ask for any: until the program
# has bound it, no other socket gets it by chance.
_FIRST, _LAST = 12_000, 26_999


def free_port() -> int:
    """A port of this machine on which nothing listens."""
    for _ in range(100):
        port = random.SystemRandom().randint(_FIRST, _LAST)
        with contextlib.suppress(OSError), socket.socket() as one:
            # Not `create_server`: with its SO_REUSEADDR macOS shares a port.
            one.bind(("", port))
            return port
    raise AssertionError("none of 100 ports is free")
