"""Whether anybody listens where a scheduler should: Ray and Dask try for minutes, in silence."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

_LIMIT_S = 20.0


def knock(address: str) -> None:
    """Fails soon where nobody listens; an address without a port is left to whoever knows it.

    Args:
        address: HOST:PORT, with a scheme before it or without.

    Raises:
        OSError: nobody does; ValueError: the port is no number.
    """
    place = urlsplit(address if "://" in address else f"//{address}")
    if place.hostname and place.port:
        socket.create_connection((place.hostname, place.port), _LIMIT_S).close()
