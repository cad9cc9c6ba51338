"""The body of a request, within its limits, and clients that leave before they have an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from starlette.types import Message, Receive, Scope

from flatout.errors import UsageError
from flatout.schema.units import seconds_text
from flatout.serve.limits import ServeLimits, check_body_bytes, decompressed
from flatout.serve.serve_errors import ServerBusy

# Most answers are there before: their connection is not watched.
_UNWATCHED_S = 0.05
_DRAIN_S = 1.0
# Where a request's scope has how much of its body is counted.
_HELD = "flatout.held_bytes"

Result = TypeVar("Result")


class ClientLeft(Exception):
    """The client has closed the connection: there is no one to answer."""


def header(scope: Scope, name: bytes) -> str:
    """A header of the request, or an empty text. name: in lower case."""
    for key, value in scope["headers"]:
        if key == name:
            return str(value, "latin-1")
    return ""


class BodyMemory:
    """What the bodies of all requests that are being answered may take together."""

    def __init__(self, limits: ServeLimits) -> None:
        self.limits = limits
        self._held_bytes = 0

    def hold(self, scope: Scope, num_bytes: int) -> None:
        """Counts bytes of a request's body until `release`.

        Raises:
            ServerBusy
        """
        if self._held_bytes + num_bytes > self.limits.held_bytes:
            raise ServerBusy("the bodies of other requests take all memory for bodies", 1.0)
        self._held_bytes += num_bytes
        scope[_HELD] = scope.get(_HELD, 0) + num_bytes

    def release(self, scope: Scope) -> None:
        """Forgets a request that has ended."""
        self._held_bytes -= scope.pop(_HELD, 0)


async def read_body(scope: Scope, receive: Receive, memory: BodyMemory) -> bytes:
    """All of a request's body, decompressed.

    Raises:
        UsageError: body-too-large, body-too-slow, body-not-readable, content-type-not-supported
        ServerBusy: there is no memory for it now
        ClientLeft: before all of it had arrived
    """
    limits = memory.limits
    declared = header(scope, b"content-length")
    # The server has checked its form, and counts what comes.
    if declared.isdecimal() and len(declared) < 20:
        check_body_bytes(int(declared), limits)
    pieces: list[bytes] = []
    total = 0
    try:
        async with asyncio.timeout(limits.body_s):
            has_more = True
            while has_more:
                message = await _next(receive)
                piece = message.get("body", b"")
                total += len(piece)
                check_body_bytes(total, limits)
                memory.hold(scope, len(piece))
                pieces.append(piece)
                has_more = message.get("more_body", False)
    except TimeoutError as error:
        raise UsageError(
            "body-too-slow",
            f"the body of the request did not arrive within {seconds_text(limits.body_s)}.",
            fix="send less in a request, or over a faster connection",
        ) from error
    body = b"".join(pieces)
    encoding = header(scope, b"content-encoding")
    if not encoding:
        return body
    # In a thread, because a small body may become a large one.
    body = await asyncio.to_thread(decompressed, body, encoding, limits)
    memory.hold(scope, len(body))
    return body


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


async def unless_client_leaves(receive: Receive, work: Awaitable[Result]) -> Result:
    """What the work returns; it is cancelled if the client leaves. The body must have been read.

    Raises:
        ClientLeft
    """
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    has_left = False

    async def watch() -> None:
        nonlocal has_left
        while (await receive())["type"] != "http.disconnect":
            pass
        has_left = True
        task.cancel()

    watches: list[asyncio.Task[None]] = []
    timer = loop.call_later(_UNWATCHED_S, lambda: watches.append(loop.create_task(watch())))
    try:
        return await work
    except asyncio.CancelledError:
        if not has_left:
            raise
        task.uncancel()
        raise ClientLeft from None
    finally:
        timer.cancel()
        for one in watches:
            one.cancel()
