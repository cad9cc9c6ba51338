"""The socket that a web server listens on, opened before anything slow is started."""

from __future__ import annotations

import errno
import socket
import sys
from collections.abc import Callable

from flatout.errors import UsageError

_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


def is_loopback(host: str) -> bool:
    """Whether only this computer can connect."""
    return host in _LOOPBACK_NAMES or host.startswith("127.")


def own_name() -> str:
    """The name of this computer, by which others may address it."""
    return socket.gethostname()


def listening_socket(host: str, port: int) -> socket.socket:
    """A socket at that address, not yet accepting. port: 0 takes a free one.

    Raises:
        UsageError: port-in-use, bad-address.
    """
    listener = None
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)
        if sys.platform == "win32":
            # There, a second server would get the port, too.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
        else:
            # A server that has just ended does not keep the port.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        # Another server may hold the port without listening yet.
        listener.listen(1)
    except (OSError, UnicodeError) as error:
        # The latter of a host that cannot be a name, such as one with two dots.
        if listener is not None:
            listener.close()
        raise not_opened(host, port, error, lambda one: f"--port {one}") from error
    listener.setblocking(False)
    return listener


def not_opened(
    host: str, port: int, error: OSError | UnicodeError, option: Callable[[int], str]
) -> UsageError:
    """The error about an address that a server cannot have.

    Args:
        host, port: the address.
        error: of the socket; UnicodeError of a host that cannot be a name.
        option: the command line's option for a port.
    """
    number = error.errno if isinstance(error, OSError) else None
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    if number == errno.EADDRINUSE or (sys.platform == "win32" and number == errno.EACCES):
        return UsageError(
            "port-in-use",
            f"port {port} is already in use on {host}.",
            because="another program listens there",
            fix=f"choose another port: {option(port + 1 if port < 65535 else port - 1)}",
        )
    if number in (errno.EACCES, errno.EPERM):
        return UsageError(
            "port-in-use",
            f"port {port} on {host} may not be used.",
            because=reason,
            fix=f"choose a port above 1023: {option(8000)}",
        )
    return UsageError(
        "bad-address",
        f"{f'[{host}]' if ':' in host else host}:{port} is not an address of this computer.",
        because=reason,
        fix="leave the host out, or use 0.0.0.0 for all addresses of this computer",
    )
