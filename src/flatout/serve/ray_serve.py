"""The application of `flatout serve` on Ray Serve: Ray has the port, and starts and restarts it.

Each of Ray's replicas runs the application with a dispatcher of its own, and that one replica of
flatout's, as without Ray.
"""

from __future__ import annotations

import http.client
import importlib
import importlib.util
import logging
from collections.abc import Iterator
from typing import Any

import msgspec
from starlette.types import Receive, Scope, Send

from flatout.errors import FlatoutError, RunFailed, UsageError
from flatout.schema.serve_control import ReplicaPlan, ServeEvent, ServeReady, ServeStopping
from flatout.schema.serve_model import ServedModel
from flatout.schema.serve_request import ServeRequest
from flatout.serve.application import ApplicationOptions, application
from flatout.serve.batching import BatchTimes
from flatout.serve.queue_dispatcher import DispatchLimits, QueueDispatcher
from flatout.serve.replica_plan import ModelSource, plan_replicas
from flatout.serve.running_server import example_request, url_of
from flatout.system import clock, http_call, serve_files
from flatout.system.server_socket import listening_socket
from flatout.system.signals import Interrupts

_NAME = "flatout"
_POLL_S = 0.2
# For Ray's proxy to answer once the application runs.
_PROXY_S = 30.0


def require_ray() -> None:
    """Refuses `--on ray` without Ray.

    Raises:
        UsageError: ray-not-installed.
    """
    if importlib.util.find_spec("ray") is None:
        raise UsageError(
            "ray-not-installed",
            "`--on ray` needs Ray, which is not installed.",
            because="Ray Serve starts the application in this environment",
            fix="pip install 'ray[serve]'",
        )


def run_on_ray(
    source: ModelSource, request: ServeRequest, interrupts: Interrupts
) -> Iterator[ServeEvent]:
    """Runs the application on Ray, and gives what happens, until it is interrupted.

    Raises:
        UsageError: port-in-use, bad-address; RunFailed: ray-serve-failed.
    """
    began_s = clock.elapsed_s()
    with listening_socket(request.host, request.port) as listener:
        # Ray opens it by itself.
        port = listener.getsockname()[1]
    # Not by a statement: nothing else may load it.
    ray, serve = importlib.import_module("ray"), importlib.import_module("ray.serve")
    ray.init(log_to_driver=False, logging_level=logging.WARNING)
    try:
        # Ray has set a handler of its own for SIGTERM.
        with Interrupts() as since:
            model = _started(serve, source, request, port)
            yield _ready(model, request, port, clock.elapsed_s() - began_s)
            while not interrupts.count and not since.count:
                clock.sleep_s(_POLL_S)
            yield ServeStopping(num_open=None)
            serve.delete(_NAME)
    finally:
        serve_files.remove(port)
        ray.shutdown()


class RayApplication:
    """The application as Ray runs it: its replica starts and ends with Ray's.

    Args:
        plan: one replica.
        request: how it is served.
    """

    def __init__(self, plan: ReplicaPlan, request: ServeRequest) -> None:
        limits = DispatchLimits(
            max_queue=request.max_queue, timeout_s=request.timeout_s, hang_s=request.timeout_s
        )
        self._plan = plan
        self._dispatcher = QueueDispatcher(limits, _ignore)
        self._application = application(self._dispatcher, ApplicationOptions(token=request.token))

    @property
    def model(self) -> ServedModel:
        """The model that answers."""
        return self._dispatcher.model

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, or starts and stops the replica."""
        if scope["type"] != "lifespan":
            await self._application(scope, receive, send)
            return
        await receive()
        try:
            await self._dispatcher.start(self._plan)
        except FlatoutError as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._dispatcher.stop()
        await send({"type": "lifespan.shutdown.complete"})


def _ignore(event: ServeEvent) -> None:
    """Ray reports on its replicas by itself."""


def _started(serve: Any, source: ModelSource, request: ServeRequest, port: int) -> ServedModel:
    num_replicas = request.num_replicas or 1
    plan = plan_replicas(source, msgspec.structs.replace(request, num_replicas=num_replicas))
    start = plan.starts[0]
    device = str(start.fixed.get("device", source.device))
    if device.startswith("cuda"):
        # Ray shows each replica one GPU, which is the first that it sees.
        start = msgspec.structs.replace(start, fixed={**start.fixed, "device": "cuda"})
    plan = msgspec.structs.replace(plan, starts=(start,))

    def build() -> RayApplication:
        return RayApplication(plan, request)

    class RayReplica:
        app: Any

        def describe(self) -> bytes:
            return msgspec.json.encode(self.app.model)

    deployment = serve.deployment(
        serve.ingress(build)(RayReplica),
        name=_NAME,
        num_replicas=num_replicas,
        max_ongoing_requests=request.max_queue,
        graceful_shutdown_timeout_s=request.timeout_s,
        ray_actor_options={
            "num_cpus": start.num_threads or 1, "num_gpus": int(device.startswith("cuda")),
        },
    )  # fmt: skip
    try:
        serve.start(http_options={"host": request.host, "port": port})
        handle = serve.run(deployment.bind(), name=_NAME, route_prefix="/")
        model = msgspec.json.decode(handle.describe.remote().result(), type=ServedModel)
    except Exception as error:
        raise RunFailed(
            "ray-serve-failed",
            "Ray Serve could not start the application.",
            because=str(error).strip().splitlines()[-1] if str(error).strip() else repr(error),
            fix="see whether it starts without Ray: flatout serve RUN",
            printed=str(error),
        ) from error
    _require_answer(url_of(request.host, port))
    return model


def _require_answer(url: str) -> None:
    """Waits for Ray's proxy.

    Raises:
        RunFailed: ray-serve-failed.
    """
    end_s = clock.elapsed_s() + _PROXY_S
    because = ""
    while clock.elapsed_s() < end_s:
        try:
            status = http_call.call(url + "/health/live").status
        except (OSError, http.client.HTTPException) as error:
            because = str(error)
        else:
            if status == 200:
                return
            because = f"status {status}"
        clock.sleep_s(_POLL_S)
    raise RunFailed(
        "ray-serve-failed",
        f"Ray Serve does not answer at {url}.",
        because=because,
        fix="if Ray Serve already runs in this Ray cluster, use its --host and --port",
    )


def _ready(model: ServedModel, request: ServeRequest, port: int, startup_s: float) -> ServeReady:
    url = url_of(request.host, port)
    latency_s = request.latency_s if request.max_samples is None else None
    return ServeReady(
        url=url,
        model=model,
        num_replicas=request.num_replicas or 1,
        batch_samples=BatchTimes(model, latency_s).limit,
        max_queue=request.max_queue,
        timeout_s=request.timeout_s,
        needs_token=request.token is not None,
        startup_s=startup_s,
        example=example_request(model, request, port),
    )
