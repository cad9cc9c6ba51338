"""uvicorn, in an event loop that is not its own: what ends it is decided elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import Iterator
from typing import Any

import uvicorn

# Longer than the pauses of clients, which reuse connections without looking whether they are open.
_KEEP_ALIVE_S = 75
_BACKLOG = 2048


class HttpServer(uvicorn.Server):
    """Answers HTTP requests on a socket with an application."""

    def __init__(self, application: Any, listener: socket.socket) -> None:
        super().__init__(
            uvicorn.Config(
                application,
                loop="none",
                ws="none",
                access_log=False,
                log_config=None,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=_KEEP_ALIVE_S,
                backlog=_BACKLOG,
            )
        )
        self._listener = listener

    async def run_until_stopped(self) -> None:
        """Accepts requests until `stop`, then finishes those that have begun."""
        await self.serve(sockets=[self._listener])

    def stop(self, *, is_at_once: bool = False) -> None:
        """Accepts no more connections; is_at_once: does not wait for answers either."""
        self.should_exit = True
        self.force_exit = is_at_once

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals to the command."""
        yield


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where it is installed, which answers more requests; else Python's own."""
    if sys.platform != "win32":
        with contextlib.suppress(ImportError):
            import uvloop

            loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
            return loop
    return asyncio.new_event_loop()
