"""A generated answer as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
from starlette.types import Receive, Scope, Send

from flatout.errors import FlatoutError
from flatout.serve.http_errors import error_body
from flatout.serve.request_body import unless_client_leaves


class EventStream:
    """A response: an event with `text` for each piece, then `end`, or `error` if it fails.

    Args:
        first: the first piece; None: there is none.
        pieces: the others. Closed at the end, also if the client leaves.
        end: the data of the last event.
    """

    def __init__(self, first: str | None, pieces: AsyncIterator[str], end: dict[str, Any]) -> None:
        self._first = first
        self._pieces = pieces
        self._end = end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends all of it."""
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-store"),
            # nginx would hold pieces back.
            (b"x-accel-buffering", b"no"),
        ]
        try:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await unless_client_leaves(receive, self._send_events(send))
        finally:
            close = getattr(self._pieces, "aclose", None)
            if close is not None:
                await close()

    async def _send_events(self, send: Send) -> None:
        try:
            if self._first is not None:
                await _send(send, _event(msgspec.json.encode({"text": self._first})))
            async for piece in self._pieces:
                await _send(send, _event(msgspec.json.encode({"text": piece})))
            last = _event(msgspec.json.encode(self._end), b"end")
        except FlatoutError as error:
            last = _event(error_body(error), b"error")
        await send({"type": "http.response.body", "body": last, "more_body": False})


async def _send(send: Send, event: bytes) -> None:
    await send({"type": "http.response.body", "body": event, "more_body": True})


def _event(data: bytes, name: bytes | None = None) -> bytes:
    """JSON in one line, so one line of data is enough."""
    return (b"event: " + name + b"\n" if name else b"") + b"data: " + data + b"\n\n"
