"""Connections of this process that end by themselves when their other end cannot be reached.

Where a network is cut, nothing arrives any more, and no error is raised: a process that waits for
a reply waits until its timeout. Where nothing is under way, the kernel can probe, and give up. What
is under way it sends again, for a quarter of an hour; its own limit for that, TCP_USER_TIMEOUT,
would also end the connection to a process that reads nothing for so long. So it is looked here for
how often the kernel has probed or sent without success. A peer that is merely slow, or stopped, is
acknowledged by its kernel, and is waited for.

Source: man 7 tcp, of TCP_KEEPIDLE, TCP_USER_TIMEOUT, tcp_retries2 and TCP_INFO.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import sys
import threading
from collections.abc import Iterator

from flatout.system.clock import elapsed_s

# What Linux and macOS show of a process's open files; Windows has nothing of the kind.
_OPEN_FILES = "/dev/fd"
_NUM_PROBES = 6

# Where tcp_info of linux/tcp.h has what was sent again, and the probes, without a reply; and
# how often is more than chance.
_STATE, _RETRANSMITS, _PROBES, _INFO_BYTES = 0, 2, 3, 8
_IN_VAIN = 2
_ESTABLISHED = 1


class TcpKeepalive:
    """Ends those TCP connections of this process that lead nowhere.

    Only sockets that exist when it is created, whatever created them; not under Windows, and on
    macOS only while nothing is under way.

    num_connections: how many there are.

    Args:
        limit_s: how long the other end may not be reached.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._is_over = threading.Event()
        self._inodes: set[int] = set()
        # Since when it is so, by the connection.
        self._in_vain_s: dict[int, float] = {}
        for inode, connection in _connections():
            self._inodes.add(inode)
            _probe_when_idle(connection, limit_s)
        self.num_connections = len(self._inodes)
        if sys.platform == "linux":
            threading.Thread(target=self._watch, name="cut watch", daemon=True).start()

    def end(self) -> None:
        """Watches no more."""
        self._is_over.set()

    def _watch(self) -> None:
        while not self._is_over.wait(self._limit_s / (2 * _NUM_PROBES)):
            for inode, connection in _connections():
                # It may be closed in the meantime.
                with contextlib.suppress(OSError):
                    if inode in self._inodes and self._is_cut(inode, connection):
                        connection.shutdown(socket.SHUT_RDWR)

    def _is_cut(self, inode: int, connection: socket.socket) -> bool:
        if not _is_in_vain(connection):
            self._in_vain_s.pop(inode, None)
            return False
        return elapsed_s() - self._in_vain_s.setdefault(inode, elapsed_s()) >= self._limit_s


def open_connections() -> frozenset[int]:
    """TCP connections of this process that neither end has closed, by inode; Linux only."""
    inodes: set[int] = set()
    for inode, connection in _connections():
        with contextlib.suppress(OSError):
            if sys.platform == "linux" and _info(connection)[_STATE] == _ESTABLISHED:
                inodes.add(inode)
    return frozenset(inodes)


def _is_in_vain(connection: socket.socket) -> bool:
    """Whether what was sent, or the kernel's question whether it may, is not acknowledged."""
    info = _info(connection)
    return max(info[_RETRANSMITS], info[_PROBES]) >= _IN_VAIN


def _info(connection: socket.socket) -> bytes:
    if sys.platform != "linux":
        return bytes(_INFO_BYTES)
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)


def _probe_when_idle(connection: socket.socket, limit_s: float) -> None:
    """Has the kernel end a connection that is idle, and whose other end does not respond."""
    options = {
        "TCP_KEEPIDLE": max(1, round(limit_s / 2)),
        "TCP_KEEPALIVE": max(1, round(limit_s / 2)),  # As macOS calls it.
        "TCP_KEEPINTVL": max(1, round(limit_s / (2 * _NUM_PROBES))),
        "TCP_KEEPCNT": _NUM_PROBES,
    }
    # Something that is like TCP may lack an option of it.
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in options.items():
            number = getattr(socket, name, None)
            if number is not None:
                connection.setsockopt(socket.IPPROTO_TCP, number, value)


def _connections() -> Iterator[tuple[int, socket.socket]]:
    """This process's TCP sockets, each by its inode, and under a number of its own."""
    try:
        names = os.listdir(_OPEN_FILES)
    except OSError:
        return
    for name in names:
        # The listing's own number is gone by now.
        with contextlib.suppress(OSError):
            # Not of a file: to close another number of it could give up its locks.
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                with _socket_of(os.dup(int(name))) as connection:
                    is_internet = connection.family in (socket.AF_INET, socket.AF_INET6)
                    if is_internet and connection.type == socket.SOCK_STREAM:
                        yield os.fstat(connection.fileno()).st_ino, connection


def _socket_of(number: int) -> socket.socket:
    try:
        return socket.socket(fileno=number)
    except OSError:
        # Someone has closed the socket in the meantime, and opened something else.
        os.close(number)
        raise
