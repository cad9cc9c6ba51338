"""Checks that the scheduler's port accepts connections: Ray and Dask retry silently for minutes."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

_LIMIT_S = 20.0


def check_port(address: str) -> None:
    """Fails fast if the port does not accept connections; ignores addresses without a port.

    Args:
        address: HOST:PORT, with a scheme before it or without.

    Raises:
        OSError: no connection; ValueError: the port is not a number.
    """
    url = urlsplit(address if "://" in address else f"//{address}")
    if url.hostname and url.port:
        socket.create_connection((url.hostname, url.port), _LIMIT_S).close()
