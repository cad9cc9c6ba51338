"""A server while it runs: replicas, HTTP and control port, from the start to the last answer."""

from __future__ import annotations

import asyncio
import itertools
import socket
import sys

import msgspec

from flatout.schema.serve_control import (
    ReplicaPlan,
    ServeEvent,
    ServeReady,
    ServeStopped,
    ServeStopping,
    ServeTick,
)
from flatout.schema.serve_model import ServedModel
from flatout.schema.serve_request import ServeRequest
from flatout.schema.shell_quoting import typed_here
from flatout.serve.allowed_hosts import allowed_hosts
from flatout.serve.application import ApplicationOptions, application
from flatout.serve.control import ControlPort
from flatout.serve.http_server import HttpServer
from flatout.serve.queue_dispatcher import DispatchLimits, QueueDispatcher
from flatout.serve.token_hash import TokenHash
from flatout.system import serve_files
from flatout.system.clock import elapsed_s
from flatout.system.signals import Interrupts

# So often Ctrl-C is noticed.
_POLL_S = 0.1
_TICK_S = 1.0
# A longer example is in a file.
_LONGEST_EXAMPLE = 300


class RunningServer:
    """One server.

    Args:
        request: how it serves.
        plan: its replicas.
        listener: the socket of its HTTP server.
        interrupts: counts Ctrl-C and SIGTERM.

    events: what happens, and None after the last one. was_interrupted: before it was ready.
    """

    def __init__(
        self, request: ServeRequest, plan: ReplicaPlan, listener: socket.socket,
        interrupts: Interrupts,
    ) -> None:  # fmt: skip
        self.events: asyncio.Queue[ServeEvent | None] = asyncio.Queue()
        self.was_interrupted = False
        self._request = request
        self._plan = plan
        self._listener = listener
        self._interrupts = interrupts
        self._port: int = listener.getsockname()[1]
        self._dispatcher = QueueDispatcher(limits_of(request), self._report)
        self._control = ControlPort(self._dispatcher, self._report)
        self._last_tick_s = elapsed_s()
        self._last_counts = (0, 0, 0)

    async def run(self) -> None:
        """Serves until it is interrupted; the second time at once.

        Raises:
            ReplicaNotStarted
        """
        began_s = elapsed_s()
        try:
            starting = asyncio.ensure_future(self._dispatcher.start(self._plan))
            if await self._until_done(starting):
                starting.result()
                await self._serve(began_s)
                return
            # Not as an exception: in a task, KeyboardInterrupt ends the loop at once.
            self.was_interrupted = True
            starting.cancel()
            await asyncio.wait({starting})
        except BaseException:
            await self._dispatcher.kill()
            raise
        finally:
            self._listener.close()
            self.events.put_nowait(None)

    async def _serve(self, began_s: float) -> None:
        options = options_of(self._request)
        http = HttpServer(application(self._dispatcher, options), self._listener)
        serving = asyncio.ensure_future(http.run_until_stopped())
        control = await self._control.open(self._plan.name, self._port)
        serve_files.write_control(msgspec.structs.replace(control, host=self._request.host))
        try:
            self._report(self._ready(elapsed_s() - began_s))
            await self._until_done(serving)
            self._report(ServeStopping(num_open=self._dispatcher.refuse_new()))
            self._control.close()
            http.stop()
            stopping = asyncio.ensure_future(self._stop(serving))
            num_lost = 0
            if await self._until_done(stopping, num_allowed=self._interrupts.count):
                stopping.result()
            else:
                http.stop(is_at_once=True)
                num_lost = await self._dispatcher.kill()
                await asyncio.wait({stopping}, timeout=_TICK_S)
                stopping.cancel()
        finally:
            serve_files.remove(str(self._port))
        totals = self._dispatcher.state().totals
        self._report(
            ServeStopped(
                num_answered=totals.num_answered,
                num_failed=totals.num_failed + totals.num_expired,
                num_refused=totals.num_refused + totals.num_busy,
                num_lost=num_lost,
                uptime_s=elapsed_s() - began_s,
            )
        )

    async def _stop(self, serving: asyncio.Future[None]) -> None:
        await serving
        await self._dispatcher.stop()

    async def _until_done(self, task: asyncio.Future[None], *, num_allowed: int = 0) -> bool:
        """Waits for a task; False: there were more interrupts than that first."""
        while self._interrupts.count <= num_allowed:
            done, _ = await asyncio.wait({task}, timeout=_POLL_S)
            if done:
                return True
            self._tick()
        return task.done()

    def _report(self, event: ServeEvent) -> None:
        self.events.put_nowait(event)
        self._control.pass_on(event)

    def _ready(self, startup_s: float) -> ServeReady:
        request, dispatcher = self._request, self._dispatcher
        url = url_of(request.host, self._port)
        return ServeReady(
            url=url,
            model=dispatcher.model,
            num_replicas=len(dispatcher.plan.starts),
            batch_samples=dispatcher.batch_samples,
            max_queue=request.max_queue,
            timeout_s=request.timeout_s,
            needs_token=request.token is not None,
            startup_s=startup_s,
            example=example_request(dispatcher.model, request, url, str(self._port)),
            findings=dispatcher.findings,
        )

    def _tick(self) -> None:
        now_s = elapsed_s()
        if now_s - self._last_tick_s < _TICK_S:
            return
        state = self._dispatcher.state()
        totals = state.totals
        counts = (totals.num_answered, totals.num_samples, totals.num_batches)
        answered, samples, batches = (
            new - old for new, old in zip(counts, self._last_counts, strict=True)
        )
        recent = sorted(itertools.islice(reversed(self._dispatcher.recent_s), answered))
        self.events.put_nowait(
            ServeTick(
                requests_per_s=answered / (now_s - self._last_tick_s),
                num_queued=state.num_queued,
                num_ready=sum(replica.phase == "ready" for replica in state.replicas),
                num_replicas=len(state.replicas),
                p50_s=recent[len(recent) // 2] if recent else None,
                p99_s=recent[len(recent) * 99 // 100] if recent else None,
                batch_samples=samples / batches if batches else None,
            )
        )
        self._last_tick_s, self._last_counts = now_s, counts


def options_of(request: ServeRequest) -> ApplicationOptions:
    """How the application accepts requests."""
    token = None if request.token is None else TokenHash.of(request.token)
    return ApplicationOptions(token=token, hosts=allowed_hosts(request))


def limits_of(request: ServeRequest) -> DispatchLimits:
    """What the queue allows."""
    return DispatchLimits(
        max_queue=request.max_queue, timeout_s=request.timeout_s, hang_s=request.timeout_s
    )


def url_of(host: str, port: int) -> str:
    """The address of a server, for a client on this computer."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def example_request(
    model: ServedModel, request: ServeRequest, url: str, name: str
) -> str | None:  # fmt: skip
    """A command that gets an answer; None where the model has no example.

    Args:
        model: what is served.
        request: how.
        url: of the server.
        name: of its files.
    """
    words = ["curl", f"{url}/predict"]
    if request.token is not None:
        words += ["-H", "authorization: Bearer TOKEN"]
    if model.example is not None:
        body = {"input": model.example}
        text = msgspec.json.encode(body).decode()
        # PowerShell takes the quotes out of a text.
        if len(text) > _LONGEST_EXAMPLE or sys.platform == "win32":
            text = f"@{serve_files.write_example(name, body)}"
        return typed_here([*words, "-H", "content-type: application/json", "-d", text])
    return typed_here([*words, "-F", "file=@FILE"]) if "file" in model.accepts else None
