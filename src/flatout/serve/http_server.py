"""uvicorn, in an event loop that is not its own: what ends it is decided elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import Iterator
from http import HTTPStatus

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from flatout.errors import UsageError
from flatout.schema.units import bytes_text, seconds_text
from flatout.serve.http_errors import error_response

# Longer than the pauses of clients, which reuse connections without looking whether they are open.
_KEEP_ALIVE_S = 75
_BACKLOG = 2048
_HEADERS_S = 30.0
_HEADER_BYTES = 64 << 10
# A client that does not read its answer must not keep a server from ending.
_STOP_S = 600


class _LimitedConnection(HttpToolsProtocol):
    """uvicorn's, with limits for headers, which it lacks, and errors as the routes have them."""

    _is_in_headers = False
    _is_in_message = False
    _has_body_come = False
    # Since the beginning of the request, or the last part of its body: of headers, or of trailers.
    _header_bytes = 0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._timer = self.loop.call_later(_HEADERS_S, self._refuse_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_headers = self._is_in_message = True
        self._header_bytes = 0

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._is_in_headers = False

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._has_body_come = True
        self._header_bytes = 0

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._is_in_message = False

    def data_received(self, data: bytes) -> None:
        was_in_message, self._has_body_come = self._is_in_message, False
        super().data_received(data)
        if was_in_message and self._is_in_message and not self._has_body_come:
            self._header_bytes += len(data)
        if self._header_bytes > _HEADER_BYTES:
            self._refuse(
                UsageError(
                    "headers-too-large",
                    f"the headers of the request are larger than {bytes_text(_HEADER_BYTES)}.",
                    fix="send fewer or shorter headers, and inputs in the body",
                )
            )
        elif not self._is_in_headers and self.cycle and not self.cycle.response_complete:
            # In most cases these were all of a request, and there is no timer.
            self._stop_timer()
        elif self._timer is None:
            self._timer = self.loop.call_later(_HEADERS_S, self._refuse_slow)

    def send_400_response(self, msg: str) -> None:
        self._refuse(
            UsageError(
                "request-invalid",
                "the request is not HTTP.",
                fix="send HTTP/1.1, without TLS, as `curl http://...` does",
            )
        )

    def _refuse_slow(self) -> None:
        self._refuse(
            UsageError(
                "headers-too-slow",
                f"the headers of the request did not arrive within {seconds_text(_HEADERS_S)}.",
                fix="send them at once; open a connection when there is a request",
            )
        )

    def _refuse(self, error: UsageError) -> None:
        """Answers before there is a response, and closes."""
        self._stop_timer()
        if self.transport.is_closing():
            return
        cycle, is_in_body = self.cycle, self._is_in_message and not self._is_in_headers
        is_answering = cycle is not None and not cycle.response_complete
        if is_answering and (cycle.response_started or not is_in_body or self.pipeline):
            # It would be taken for the answer to the request before.
            self.transport.close()
            return
        response = error_response(error)
        response.headers["Connection"] = "close"
        status = response.status_code
        lines = [b"HTTP/1.1 %d %b" % (status, HTTPStatus(status).phrase.encode())]
        lines += [b"%b: %b" % pair for pair in response.raw_headers]
        self.transport.write(b"\r\n".join([*lines, b"", bytes(response.body)]))
        self.transport.close()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class HttpServer(uvicorn.Server):
    """Answers HTTP requests on a socket with an application."""

    def __init__(self, application: ASGIApp, listener: socket.socket) -> None:
        super().__init__(
            uvicorn.Config(
                application,
                loop="none",
                http=_LimitedConnection,
                ws="none",
                lifespan="off",
                access_log=False,
                log_config=None,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=_STOP_S,
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
