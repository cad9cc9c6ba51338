"""The control port of a server, on the loopback interface: how `flatout serve swap` asks it.

One line of JSON each way, and more lines while the new replicas warm up. It is not a route of the
HTTP server, so that it cannot be reached from elsewhere, whatever that is open to.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import secrets
import socket
from collections.abc import Callable, Iterator

import msgspec

from flatout.errors import FlatoutError, RunFailed, UsageError
from flatout.schema.finding import finding_from
from flatout.schema.serve_control import (
    ControlFile,
    ReplicaPlan,
    ReplicaWarming,
    ServeEvent,
    ServeSwapped,
    SwapFailed,
    SwapOrder,
    SwapReply,
)
from flatout.serve.queue_dispatcher import QueueDispatcher
from flatout.serve.replica_plan import plan_like

_LOOPBACK = "127.0.0.1"
_MOST_LINE_BYTES = 1 << 20
# For a client to send its one line.
_PATIENCE_S = 10.0


class ControlPort:
    """Carries out swaps, one at a time.

    Args:
        dispatcher: that swaps.
        report: called with a swap that failed.
    """

    def __init__(self, dispatcher: QueueDispatcher, report: Callable[[ServeEvent], None]) -> None:
        self._dispatcher = dispatcher
        self._report = report
        self._secret = secrets.token_urlsafe(32)
        self._server: asyncio.Server
        self._writer: asyncio.StreamWriter | None = None

    async def open(self, name: str, port: int) -> ControlFile:
        """Listens; what another process needs to reach it."""
        self._server = await asyncio.start_server(
            self._serve, _LOOPBACK, 0, limit=_MOST_LINE_BYTES
        )  # fmt: skip
        control_port = self._server.sockets[0].getsockname()[1]
        return ControlFile(name=name, port=port, control_port=control_port, secret=self._secret)

    def close(self) -> None:
        """Listens no longer."""
        self._server.close()

    def pass_on(self, event: ServeEvent) -> None:
        """Sends the client that waits for a swap what its replicas do."""
        if self._writer is not None and isinstance(event, ReplicaWarming):
            _write(self._writer, event)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                line = await reader.readline()
            order = msgspec.json.decode(line, type=SwapOrder)
            if hmac.compare_digest(order.secret.encode(), self._secret.encode()):
                await self._swap(order.plan, reader, writer)
        except (TimeoutError, ValueError, OSError, msgspec.DecodeError):
            # Not a client of ours, or one that has left.
            pass
        finally:
            writer.close()

    async def _swap(
        self, plan: ReplicaPlan | None, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        swapping = asyncio.ensure_future(self._swapped(plan))
        leaving = asyncio.ensure_future(reader.read(1))
        if not self._dispatcher.state().is_swapping:
            self._writer = writer
        await asyncio.wait({swapping, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if self._writer is writer:
            self._writer = None
        leaving.cancel()
        if not swapping.done():
            # The client was interrupted: it does not want the swap any more.
            swapping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            _write(writer, await swapping)
            await writer.drain()

    async def _swapped(self, plan: ReplicaPlan | None) -> SwapReply:
        try:
            if plan is None:
                return await self._dispatcher.swap_back()
            return await self._dispatcher.swap(plan_like(plan, self._dispatcher.plan))
        except FlatoutError as error:
            finding = getattr(error, "finding", None) or finding_from(error)
            failed = SwapFailed(finding=finding, exit_code=error.exit_code)
            self._report(failed)
            return failed


def _write(writer: asyncio.StreamWriter, event: ServeEvent) -> None:
    writer.write(msgspec.json.encode(event) + b"\n")


def choose_server(servers: list[ControlFile], port: int | None) -> ControlFile:
    """The running server that is meant.

    Raises:
        UsageError: no-server, several-servers.
    """
    named = [server for server in servers if port is None or server.port == port]
    if len(named) == 1:
        return named[0]
    listed = ", ".join(f"{server.port} ({server.name})" for server in servers)
    if not servers or not named:
        raise UsageError(
            "no-server",
            f"no server of yours uses port {port}." if port else "no server of yours is running.",
            because=f"those that run: {listed}" if servers else None,
            fix="start one: flatout serve RUN" if not servers else "choose one of them: --port N",
        )
    raise UsageError(
        "several-servers",
        f"{len(named)} servers are running.",
        because=f"their ports: {listed}",
        fix=f"choose one: --port {named[0].port}",
    )


def ask_swap(server: ControlFile, plan: ReplicaPlan | None) -> Iterator[SwapReply]:
    """Asks a running server to swap its model; gives what happens. plan: None swaps back.

    Raises:
        RunFailed: server-gone, server-not-understood.
    """
    order = SwapOrder(secret=server.secret, plan=plan)
    decoder = msgspec.json.Decoder(SwapReply)
    try:
        with socket.create_connection((_LOOPBACK, server.control_port), _PATIENCE_S) as link:
            # A warm-up may take minutes.
            link.settimeout(None)
            link.sendall(msgspec.json.encode(order) + b"\n")
            with link.makefile("rb") as lines:
                for line in lines:
                    reply = decoder.decode(line)
                    yield reply
                    if isinstance(reply, ServeSwapped | SwapFailed):
                        return
    except OSError as error:
        raise server_gone(server, str(error)) from error
    except msgspec.DecodeError as error:
        raise server_not_understood(server, str(error)) from error
    raise server_gone(server, "it closed the connection")


def server_gone(server: ControlFile, because: str) -> RunFailed:
    """The error where nothing answers."""
    return RunFailed(
        "server-gone",
        f"the server on port {server.port} did not answer.",
        because=because,
        fix="see whether it still runs, and start it again if not",
    )


def server_not_understood(server: ControlFile, because: str) -> RunFailed:
    """The error where what answers is not a server of this version of flatout."""
    return RunFailed(
        "server-not-understood",
        f"the answer on port {server.port} is not one of this version of flatout.",
        because=because,
        fix="start the server again with this version, if no other program has taken its port",
    )
