"""The socket at which rank 0 waits for the others, at its own address alone.

torch by itself listens at every address of the machine. And a port that is looked for, closed and
opened again may be another program's by then: so the launcher hands on the socket itself, where it
starts rank 0 as a child of its own, be it a process here or an actor of Ray's.
"""

from __future__ import annotations

import errno
import os
import socket
import sys

# The number of the launcher's socket among the open files of rank 0.
SOCKET_NAME = "FLATOUT_RANKS_SOCKET"


def handed_on(listening: socket.socket) -> tuple[dict[str, str], tuple[int, ...]]:
    """Variables and open file numbers that hand a socket over to rank 0.

    Returns:
        Nothing under Windows, which has no numbers of open files that a child could be given.
    """
    if sys.platform == "win32":
        return {}, ()
    return {SOCKET_NAME: str(listening.fileno())}, (listening.fileno(),)


def listening_socket(host: str, port: int) -> int | None:
    """The number of a socket that listens there; the caller closes it.

    Returns:
        None where torch has to open one by itself: under Windows, and where the address that the
        others use leads here without being this machine's own.

    Raises:
        OSError: the port is taken.
    """
    given = os.environ.pop(SOCKET_NAME, None)
    if given is not None:
        os.set_inheritable(int(given), False)
        return int(given)
    if sys.platform == "win32":
        return None
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    try:
        return socket.create_server(address[:2], family=family).detach()
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            return None
        raise
