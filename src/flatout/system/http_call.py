"""One HTTP request and its answer: no proxy, no redirect."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Mapping
from urllib.parse import urlsplit

import msgspec

# Longer answers are cut off: they are for people, or small documents.
_MOST_BYTES = 16 * 2**20


class HttpReply(msgspec.Struct, frozen=True, kw_only=True):
    """What a server answered. headers: by name in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode(errors="replace")


def call(
    url: str,
    *,
    method: str = "GET",
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = 10.0,
) -> HttpReply:
    """Sends a request.

    Raises:
        OSError: no answer.
        http.client.HTTPException: an answer that is not HTTP.
    """
    parts = urlsplit(url)
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        connection = http.client.HTTPSConnection(
            parts.netloc, timeout=timeout_s, context=ssl.create_default_context()
        )
    else:
        connection = http.client.HTTPConnection(parts.netloc, timeout=timeout_s)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        connection.request(method, path, body, dict(headers or {}))
        answer = connection.getresponse()
        return HttpReply(
            status=answer.status,
            headers={name.lower(): value for name, value in answer.getheaders()},
            body=answer.read(_MOST_BYTES),
        )
    finally:
        connection.close()
