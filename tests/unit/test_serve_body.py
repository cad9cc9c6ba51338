"""Bodies as an ASGI server hands them over, and streams that end early."""

from __future__ import annotations

import asyncio
import gzip
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import pytest

from flatout.errors import UsageError
from flatout.serve.event_stream import EventStream
from flatout.serve.limits import ServeLimits, decompressed
from flatout.serve.request_body import BodyMemory, ClientLeft, read_body
from flatout.serve.serve_errors import ServerBusy

LIMITS = ServeLimits(body_bytes=1000, body_s=0.05, held_bytes=1500)


def read(
    *pieces: bytes, has_more: bool = False, memory: BodyMemory | None = None, **headers: str
) -> bytes:
    """What is read of a body that arrives in these pieces."""
    messages: list[dict[str, Any]] = [
        {"type": "http.request", "body": piece, "more_body": has_more or number < len(pieces)}
        for number, piece in enumerate(pieces, 1)
    ]

    async def receive() -> dict[str, Any]:
        if not messages:
            await asyncio.sleep(10)
        return messages.pop(0)

    named = [(name.replace("_", "-").encode(), text.encode()) for name, text in headers.items()]
    return asyncio.run(read_body({"headers": named}, receive, memory or BodyMemory(LIMITS)))


def test_read_body() -> None:
    assert read(b"abc") == read(b"a", b"", b"bc") == b"abc"
    assert read(gzip.compress(b"abc", mtime=0), content_encoding="gzip") == b"abc"


@pytest.mark.parametrize(
    "pieces", [(b"x" * 1001,), (b"x" * 900, b"x" * 101), (b"x" * 900, b"x" * 101, b"", b"")]
)
def test_read_body_when_it_is_too_large(pieces: tuple[bytes, ...]) -> None:
    with pytest.raises(UsageError) as caught:
        read(*pieces)
    assert caught.value.rule == "body-too-large"


def test_read_body_when_its_length_is_too_large() -> None:
    with pytest.raises(UsageError, match="larger"):
        read(b"", has_more=True, content_length="1001")


def test_read_body_when_it_is_slow() -> None:
    with pytest.raises(UsageError) as caught:
        read(b"abc", has_more=True)
    assert caught.value.rule == "body-too-slow"


def test_read_body_when_the_client_leaves() -> None:
    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    with pytest.raises(ClientLeft):
        asyncio.run(read_body({"headers": []}, receive, BodyMemory(LIMITS)))


def test_read_body_when_other_bodies_take_all_memory() -> None:
    memory = BodyMemory(LIMITS)
    other: dict[str, Any] = {}
    memory.hold(other, 900)
    with pytest.raises(ServerBusy):
        read(b"x" * 300, b"x" * 301, memory=memory)
    memory.release(other)
    memory.hold(other, 900)
    with pytest.raises(ServerBusy):
        read(gzip.compress(b"x" * 600, mtime=0), memory=memory, content_encoding="gzip")
    memory.release(other)
    assert len(read(b"x" * 600, memory=memory)) == 600


def test_decompressed_when_it_is_a_bomb() -> None:
    body = gzip.compress(bytes(50 << 20), 1, mtime=0)
    tracemalloc.start()
    try:
        with pytest.raises(UsageError, match="larger"):
            decompressed(body, "gzip", LIMITS)
        assert tracemalloc.get_traced_memory()[1] < 5 << 20
    finally:
        tracemalloc.stop()


def test_event_stream_when_it_cannot_be_sent() -> None:
    ended = []

    async def generate() -> AsyncIterator[str]:
        try:
            yield "a"
            yield "b"
        finally:
            ended.append(True)

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(10)
        return {}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body" and b"first" in message["body"]:
            return
        if message["type"] == "http.response.body":
            raise OSError("the connection was reset")

    async def run() -> None:
        # Kept, so that only being closed can end it.
        pieces = generate()
        with pytest.raises(OSError, match="reset"):
            await EventStream("first", pieces, {})({}, receive, send)
        assert ended == [True]

    asyncio.run(run())
