"""The body of a request, within its limits, and clients that leave before they have an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from starlette.types import Message, Receive, Scope

from flatout.errors import UsageError
from flatout.schema.units import seconds_text
from flatout.serve.limits import ServeLimits, check_body_bytes, decompressed

# Most answers are there before: their connection is not watched.
_UNWATCHED_S = 0.05
_DRAIN_S = 1.0

Answered = TypeVar("Answered")


class ClientLeft(Exception):
    """The client has closed the connection: there is nobody to answer."""


def header(scope: Scope, name: bytes) -> str:
    """A header of the request, or an empty text. name: in lower case."""
    for key, value in scope["headers"]:
        if key == name:
            return str(value, "latin-1")
    return ""


async def read_body(scope: Scope, receive: Receive, limits: ServeLimits) -> bytes:
    """All of a request's body, decompressed.

    Raises:
        UsageError: body-too-large, body-too-slow, body-not-readable, content-type-not-supported
        ClientLeft: before all of it had arrived
    """
    declared = header(scope, b"content-length")
    # The server has checked its form, and counts what comes.
    if declared.isdigit() and len(declared) < 20:
        check_body_bytes(int(declared), limits)
    try:
        async with asyncio.timeout(limits.body_s):
            body = await _received(receive, limits)
    except TimeoutError as error:
        raise UsageError(
            "body-too-slow",
            f"the body of the request did not arrive within {seconds_text(limits.body_s)}.",
            fix="send less in a request, or over a faster connection",
        ) from error
    encoding = header(scope, b"content-encoding")
    return decompressed(body, encoding, limits) if encoding else body


async def _received(receive: Receive, limits: ServeLimits) -> bytes:
    message = await _next(receive)
    body: bytes = message.get("body", b"")
    if not message.get("more_body", False):
        check_body_bytes(len(body), limits)
        return body
    pieces, total = [body], len(body)
    while message.get("more_body", False):
        check_body_bytes(total, limits)
        message = await _next(receive)
        piece = message.get("body", b"")
        total += len(piece)
        pieces.append(piece)
    check_body_bytes(total, limits)
    return b"".join(pieces)


async def _next(receive: Receive) -> Message:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientLeft
    return message


async def drain(receive: Receive, limits: ServeLimits) -> None:
    """Reads what a client still sends after it was refused.

    A connection that is closed with unread data is reset, and the client does not see the response.
    """
    total = 0
    try:
        async with asyncio.timeout(_DRAIN_S):
            while total <= limits.body_bytes:
                message = await _next(receive)
                total += len(message.get("body", b""))
                if not message.get("more_body", False):
                    return
    except (TimeoutError, ClientLeft):
        return


class _Watch:
    """Cancels a task when its client leaves. The body must have been read."""

    def __init__(self, receive: Receive, task: asyncio.Task[object]) -> None:
        self.has_left = False
        self._receive = receive
        self._task = task
        self._watching: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._watching = asyncio.ensure_future(self._wait())

    async def _wait(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.has_left = True
        self._task.cancel()

    def stop(self) -> None:
        if self._watching is not None:
            self._watching.cancel()


async def unless_client_leaves(receive: Receive, work: Awaitable[Answered]) -> Answered:
    """What the work returns; it is cancelled if the client leaves.

    Raises:
        ClientLeft
    """
    task = asyncio.current_task()
    assert task is not None
    watch = _Watch(receive, task)
    timer = asyncio.get_running_loop().call_later(_UNWATCHED_S, watch.start)
    try:
        return await work
    except asyncio.CancelledError:
        if not watch.has_left:
            raise
        task.uncancel()
        raise ClientLeft from None
    finally:
        timer.cancel()
        watch.stop()
