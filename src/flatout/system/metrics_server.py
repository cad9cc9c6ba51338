"""The web server that Prometheus asks for metrics."""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Callable
from typing import TypeVar

from flatout.errors import UsageError
from flatout.system.server_socket import not_opened

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
        place = "" if host == LOOPBACK else f"[{host}]" if ":" in host else host
        raise not_opened(host, port, error, lambda one: f"--prometheus {place}:{one}") from error


def _check_free(host: str, port: int) -> None:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, getattr(socket, "SO_EXCLUSIVEADDRUSE", 0), 1)
        probe.bind(address)
