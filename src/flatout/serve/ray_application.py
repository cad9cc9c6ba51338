"""The application of `flatout serve` as each of Ray Serve's replicas runs it.

Ray sends a request for /metrics to any of them, and the next one to another. Each therefore pushes
its metrics to one actor, `MetricsBoard`, and answers with those of all.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable

import msgspec
from starlette.types import Receive, Scope, Send

from flatout.errors import FlatoutError
from flatout.schema.finding import Finding
from flatout.schema.serve_control import ReplicaLost, ReplicaPlan, ReplicaPrinted, ServeEvent
from flatout.schema.serve_model import ServedModel
from flatout.serve.application import ApplicationOptions, application
from flatout.serve.dispatcher import Dispatcher
from flatout.serve.queue_dispatcher import DispatchLimits, QueueDispatcher
from flatout.serve.serve_errors import ServerBusy
from flatout.serve.serve_metrics import ServeMetrics, joined
from flatout.system.clock import elapsed_s

_PUSH_EVERY_S = 1.0
_LIMIT_S = 5.0
_LOG = logging.getLogger("flatout.serve")

# The name of a replica and the text of its metrics.
Push = Callable[[str, str], Awaitable[None]]
Collect = Callable[[str, str], Awaitable[bytes]]


class RayReplica(msgspec.Struct, frozen=True, kw_only=True):
    """What a replica says about itself once it is warm. batch_samples: the most in one batch."""

    model: ServedModel
    batch_samples: int
    findings: tuple[Finding, ...] = ()


class MetricsBoard:
    """The metrics of all replicas, in an actor of their own.

    Args:
        gone_s: a replica that pushes nothing for so long has ended: its queue counts no more.
    """

    def __init__(self, gone_s: float = 30.0) -> None:
        self._gone_s = gone_s
        self._texts: dict[str, tuple[float, str]] = {}

    async def push(self, replica: str, text: str) -> None:
        """Keeps the metrics of a replica."""
        self._texts[replica] = (elapsed_s(), text)

    async def collect(self, replica: str, text: str) -> bytes:
        """Keeps them, and gives those of all replicas that have not ended."""
        await self.push(replica, text)
        oldest_s = elapsed_s() - self._gone_s
        self._texts = {name: kept for name, kept in self._texts.items() if kept[0] >= oldest_s}
        return joined({name: text for name, (_, text) in self._texts.items()})


class SharedMetrics(ServeMetrics):
    """The metrics of a replica, which is asked for those of all.

    Args:
        dispatcher: of this replica.
        push, collect: the methods of a `MetricsBoard`, elsewhere.
    """

    def __init__(self, dispatcher: Dispatcher, push: Push, collect: Collect) -> None:
        super().__init__(dispatcher)
        self._push, self._collect = push, collect
        # Not by Ray's name or number, which a restarted replica may have again: it counts from 0.
        self._name = secrets.token_hex(4)
        # What was sent first must arrive first, or counters would fall.
        self._turn = asyncio.Lock()

    async def answer(self) -> bytes:
        """Those of all replicas.

        Raises:
            ServerBusy: the actor that has them does not answer.
        """
        try:
            async with asyncio.timeout(_LIMIT_S), self._turn:
                return await self._collect(self._name, self.text().decode())
        except Exception as error:  # Ray has several for an actor that is gone.
            raise ServerBusy("the metrics of its replicas cannot be read now", 1.0) from error

    async def push_forever(self) -> None:
        """Pushes them for the other replicas, again and again."""
        while True:
            try:
                async with asyncio.timeout(_LIMIT_S), self._turn:
                    await self._push(self._name, self.text().decode())
            except Exception as error:  # noqa: BLE001 - the actor may be starting again
                _LOG.warning("metrics were not passed on: %r", error)
            await asyncio.sleep(_PUSH_EVERY_S)


class RayApplication:
    """The application with a dispatcher of its own: its replica starts and ends with Ray's.

    Args:
        plan: one replica.
        limits: of the queue.
        options: how requests are accepted.
        push, collect: of `SharedMetrics`.
    """

    def __init__(
        self, plan: ReplicaPlan, limits: DispatchLimits, options: ApplicationOptions,
        push: Push, collect: Collect,
    ) -> None:  # fmt: skip
        self._plan = plan
        self._dispatcher = QueueDispatcher(limits, _log)
        self._metrics = SharedMetrics(self._dispatcher, push, collect)
        self._application = application(self._dispatcher, options, self._metrics)

    @property
    def replica(self) -> RayReplica:
        """What answers."""
        dispatcher = self._dispatcher
        return RayReplica(
            model=dispatcher.model,
            batch_samples=dispatcher.batch_samples,
            findings=dispatcher.findings,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, or starts and stops the replica."""
        if scope["type"] != "lifespan":
            await self._application(_at_root(scope), receive, send)
            return
        await receive()
        try:
            await self._dispatcher.start(self._plan)
        except FlatoutError as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        pushing = asyncio.create_task(self._metrics.push_forever())
        await send({"type": "lifespan.startup.complete"})
        await receive()
        pushing.cancel()
        await self._dispatcher.stop()
        await send({"type": "lifespan.shutdown.complete"})


def _at_root(scope: Scope) -> Scope:
    """The request as it would be without the path below which Ray serves the application."""
    root, path = scope.get("root_path", ""), scope["path"]
    if not root or not path.startswith(root):
        return scope
    return {**scope, "root_path": "", "path": path[len(root) :] or "/"}


def _log(event: ServeEvent) -> None:
    """What Ray does not know goes to the log of its actor."""
    if isinstance(event, ReplicaLost):
        _LOG.warning("%s\n%s", event.finding.problem, event.printed)
    elif isinstance(event, ReplicaPrinted):
        _LOG.warning("%s", event.text.rstrip("\n"))
