"""The web server that Prometheus asks for metrics."""

from __future__ import annotations

import errno
import re
import socket
import sys
from collections.abc import Callable
from typing import TypeVar

from flatout.errors import UsageError

T = TypeVar("T")

LOOPBACK = "127.0.0.1"
# Names, IPv4 and IPv6 addresses, the latter in brackets.
_ADDRESS = re.compile(
    r"(?:\[(?P<six>[0-9A-Fa-f:.%]+)\]|(?P<host>[^\[\]:/ ]*)):(?P<port>[0-9]{1,5})"
)


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of `[HOST]:PORT`; without a host, only this computer can connect.

    Raises:
        UsageError: bad-address.
    """
    match = _ADDRESS.fullmatch(text if ":" in text else f":{text}")
    if match is None or int(match["port"]) > 65535:
        raise UsageError(
            "bad-address",
            f"`--prometheus {text}` is not an address.",
            fix="write `--prometheus :9400`, or `--prometheus 0.0.0.0:9400` for other computers",
        )
    return match["six"] or match["host"] or LOOPBACK, int(match["port"])


def started(host: str, port: int, start: Callable[[str, int], T]) -> T:
    """What `start` returns, which starts a server; reports why it could not.

    Raises:
        UsageError: port-in-use, bad-address.
    """
    try:
        if sys.platform == "win32":
            # There, a second server would get the port, too.
            _check_free(host, port)
        return start(host, port)
    except (OSError, UnicodeError) as error:
        # The latter of a host that cannot be a name, such as one with two dots.
        raise _not_started(host, port, error) from error


def _check_free(host: str, port: int) -> None:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, getattr(socket, "SO_EXCLUSIVEADDRUSE", 0), 1)
        probe.bind(address)


def _not_started(host: str, port: int, error: OSError | UnicodeError) -> UsageError:
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    number = error.errno if isinstance(error, OSError) else None
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    if number == errno.EADDRINUSE:
        return UsageError(
            "port-in-use",
            f"port {port} is already in use on {host}.",
            because="another monitor or exporter, such as dcgm-exporter, listens there",
            fix=f"choose another port: --prometheus {'' if host == LOOPBACK else host}:{port + 1}"
            if port < 65535
            else "choose another port",
        )
    if number in (errno.EACCES, errno.EPERM):
        return UsageError(
            "port-in-use",
            f"port {port} on {host} may not be used.",
            because=reason,
            fix="choose a port above 1023: --prometheus :9400",
        )
    return UsageError(
        "bad-address",
        f"{place} is not an address of this computer.",
        because=reason,
        fix="leave the host out, or use 0.0.0.0 for all addresses of this computer",
    )
