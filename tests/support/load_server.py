"""A small HTTP server with known latencies, in a thread of the test."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

_REASONS = {200: "OK", 401: "Unauthorized", 422: "Unprocessable Content"}


@dataclass(frozen=True)
class Asked:
    """One request. at_s: since the server was started."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    number: int
    at_s: float


@dataclass(frozen=True)
class Reply:
    """What to answer, and after how long. is_closed: the connection is closed without an answer.

    byte_s: between two bytes of the body.
    """

    body: bytes = b'{"predictions": [7]}'
    status: int = 200
    delay_s: float = 0.0
    byte_s: float = 0.0
    is_closed: bool = False
    content_type: str = "application/json"
    location: str = ""


@dataclass
class LoadServer:
    """What a running server knows. asked: everything, in order."""

    port: int = 0
    asked: list[Asked] = field(default_factory=list)
    began_s: float = field(default_factory=time.perf_counter)
    stop: Callable[[], None] = lambda: None

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"


async def _write(writer: asyncio.StreamWriter, reply: Reply) -> None:
    if reply.byte_s:
        for byte in reply.body:
            await asyncio.sleep(reply.byte_s)
            writer.write(bytes([byte]))
    else:
        writer.write(reply.body)
    await writer.drain()


def _location(found: Reply) -> str:
    return f"Location: {found.location}\r\n" if found.location else ""


@contextlib.contextmanager
def load_server(reply: Callable[[Asked], Reply] = lambda asked: Reply()) -> Iterator[LoadServer]:
    """Runs a server that answers with what `reply` says."""
    server, is_ready = LoadServer(), threading.Event()
    loop = asyncio.new_event_loop()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while await _answer(reader, writer):
                    pass
        finally:
            writer.close()

    async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.strip().split("\r\n")
        method, path, _ = first.split(" ", 2)
        pairs = (line.partition(":") for line in lines)
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        asked = Asked(
            method, path, headers, body, len(server.asked), time.perf_counter() - server.began_s
        )
        server.asked.append(asked)
        found = reply(asked)
        await asyncio.sleep(found.delay_s)
        if found.is_closed:
            return False
        writer.write(
            f"HTTP/1.1 {found.status} {_REASONS.get(found.status, 'Other')}\r\n"
            f"{_location(found)}Content-Type: {found.content_type}\r\n"
            f"Content-Length: {len(found.body)}\r\n\r\n"
            .encode()
        )  # fmt: skip
        await _write(writer, found)
        return True

    async def serve() -> None:
        stopped = asyncio.Event()
        server.stop = lambda: loop.call_soon_threadsafe(stopped.set)
        listening = await asyncio.start_server(talk, "127.0.0.1", 0, backlog=1000)
        server.port = listening.sockets[0].getsockname()[1]
        is_ready.set()
        await stopped.wait()
        listening.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        # Until the connections are closed.
        await asyncio.sleep(0.1)

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    assert is_ready.wait(120)
    try:
        yield server
    finally:
        with contextlib.suppress(RuntimeError):
            server.stop()
        thread.join(120)
        loop.close()


def flatout_pages(asked: Asked, example: bytes = b'{"inputs": [[1, 2]]}') -> Reply | None:
    """What a flatout server says about itself; None for other paths."""
    if asked.path == "/v2":
        return Reply(b'{"name": "flatout", "version": "0.1.0", "extensions": []}')
    if asked.path == "/openapi.json":
        media = b'{"application/json": {"example": ' + example + b"}}"
        return Reply(
            b'{"paths": {"/predict": {"post": {"requestBody": {"content": ' + media + b"}}}}}"
        )
    return None
