"""`flatout serve --on ray`: an application of Ray Serve, from its start to its end.

Ray has the port, which all applications of its cluster share: each is below a path of its own.
"""

from __future__ import annotations

import contextlib
import http.client
import importlib
import logging
import math
import re
import secrets
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from flatout.errors import FlatoutError, RunFailed, UsageError
from flatout.schema.finding import Finding, Fix, option_without_effect
from flatout.schema.serve_control import ReplicaPlan, ServeReady
from flatout.schema.serve_request import ServeRequest
from flatout.schema.units import counted_text, seconds_text
from flatout.serve.application import ApplicationOptions
from flatout.serve.queue_dispatcher import DispatchLimits
from flatout.serve.ray_application import MetricsBoard, RayApplication, RayReplica
from flatout.serve.replica_plan import ModelSource, plan_replicas
from flatout.serve.running_server import example_request, limits_of, options_of, url_of
from flatout.system import clock, http_call, process_env, serve_files
from flatout.system.port_check import check_port
from flatout.system.server_socket import listening_socket

_BOARD = "metrics"
_POLL_S = 0.2
# For Ray's proxy to answer once the application runs.
_PROXY_S = 30.0
# For Ray to end an application, after what its replicas may take for their last answers.
_END_S = 30.0
# Ray counts GPUs in parts of this.
_GPU_PARTS = 10_000
_NOT_IN_PATHS = re.compile(r"[^\w.-]+", re.ASCII)


class RayServer:
    """An application on Ray Serve, in the Ray that RAY_ADDRESS names, or in one of its own.

    Args:
        source: the model.
        request: how it is served.

    Raises:
        UsageError: ray-not-installed.
    """

    def __init__(self, source: ModelSource, request: ServeRequest) -> None:
        self._ray, self._serve = _imported()
        # Another server of the same model may run in the same cluster.
        self._name = f"{_NOT_IN_PATHS.sub('-', source.name)}-{secrets.token_hex(3)}"
        self._request = request
        self.num_replicas = num_replicas = request.num_replicas or 1
        plan = plan_replicas(source, msgspec.structs.replace(request, num_replicas=num_replicas))
        self._start = plan.starts[0]
        device = str(self._start.fixed.get("device", source.device))
        # Of a Ray of its own.
        self._own_gpus = 0
        self._num_gpus = 0.0
        self._address = process_env.head_address("ray")
        if self._address is None:
            self._own_gpus = source.num_gpus if device.startswith("cuda") else 0
            # Without enough GPUs of this machine, it would wait for one forever.
            self._num_gpus = gpu_share(num_replicas, self._own_gpus)
        elif device.startswith("cuda"):
            self._num_gpus = 1.0
        asked = str(source.start.fixed.get("device", ""))
        self._findings = _numbered_gpu(asked) if self._num_gpus and ":" in asked else []
        if self._num_gpus:
            # Ray shows each replica one GPU, which is the first that it sees.
            fixed = {**self._start.fixed, "device": "cuda"}
            self._start = msgspec.structs.replace(self._start, fixed=fixed)
        self._plan = msgspec.structs.replace(plan, starts=(self._start,))
        self._has_begun = False

    def join(self) -> tuple[ServeRequest, list[Finding]]:
        """Joins or starts Ray and its Serve.

        Returns:
            The request with the address that Serve has, and warnings about it.

        Raises:
            UsageError: port-in-use, bad-address; RunFailed: scheduler-not-reachable,
            ray-serve-failed.
        """
        address = self._address
        num_cpus = self.num_replicas * self._num_threads
        own: dict[str, Any] = {
            "address": "local", "num_cpus": num_cpus, "include_dashboard": False,
        }  # fmt: skip
        if self._own_gpus:
            # Ray itself may count others than the environment of the run can use.
            own["num_gpus"] = self._own_gpus
        try:
            if address:
                # Ray itself would try again and again.
                check_port(address)
            self._ray.init(
                log_to_driver=False, logging_level="ERROR", **(own if address is None else {})
            )
        except Exception as error:  # Ray has several for an unreachable head.
            raise RunFailed(
                "scheduler-not-reachable",
                f"Ray does not answer at {address}." if address else "Ray could not be started.",
                because=_last_line(error),
                fix="check the address in RAY_ADDRESS, and that the head node is running"
                if address
                else "see its output; or serve without Ray: leave --on ray out",
            ) from error
        findings = list(self._findings)
        if address is not None:
            findings += self._waits()
        asked = self._request
        self._request = self._at_address()
        if (asked.host, asked.port or self._request.port) != (
            self._request.host, self._request.port,
        ):  # fmt: skip
            findings.append(
                option_without_effect(
                    "--port",
                    "Ray Serve already runs in this Ray cluster, at"
                    f" {url_of(self._request.host, self._request.port)}",
                    "leave --host and --port out, or end Ray Serve first: serve shutdown",
                )
            )
        return self._request, findings

    def start(self) -> ServeReady:
        """Runs the application, and waits until it answers.

        Raises:
            RunFailed: ray-serve-failed.
        """
        began_s = clock.elapsed_s()
        request, url = self._request, self._url
        self._has_begun = True
        try:
            handle = self._serve.run(
                self._application(), name=self._name, route_prefix=f"/{self._name}"
            )
            found = msgspec.json.decode(handle.describe.remote().result(), type=RayReplica)
        except Exception as error:
            raise RunFailed(
                "ray-serve-failed",
                "Ray Serve could not start the application.",
                because=_last_line(error),
                fix="see whether it starts without Ray: flatout serve RUN",
                printed=str(error),
            ) from error
        _require_answer(url)
        return ServeReady(
            url=url,
            model=found.model,
            num_replicas=self.num_replicas,
            batch_samples=found.batch_samples,
            max_queue=request.max_queue,
            timeout_s=request.timeout_s,
            needs_token=request.token is not None,
            startup_s=clock.elapsed_s() - began_s,
            example=example_request(found.model, request, url, self._name),
            findings=found.findings,
        )

    def end(self) -> None:
        """Ends the application, once what it has accepted is answered; and a Ray of its own.

        Raises:
            RunFailed: ray-serve-failed.
        """
        serve_files.remove(self._name)
        try:
            if self._has_begun:
                self._delete()
        finally:
            self._ray.shutdown()

    def _delete(self) -> None:
        """Ends the application, and waits until Ray has.

        Raises:
            RunFailed: ray-serve-failed.
        """
        began_s = clock.elapsed_s()
        end_s = began_s + self._request.timeout_s + _END_S
        try:
            # It waits for a minute at most, and replicas may take longer for their last answers.
            with contextlib.suppress(TimeoutError):
                self._serve.delete(self._name)
            left = left_after(self._serve.status, self._name, end_s - clock.elapsed_s())
        except Exception as error:
            raise RunFailed(
                "ray-serve-failed",
                f"Ray Serve could not end the application {self._name}.",
                because=_last_line(error),
                fix="see what is left, and end it: serve status, serve shutdown",
            ) from error
        # A Ray of its own ends now, and the application with it.
        if left is None or self._address is None:
            return
        waited = seconds_text(clock.elapsed_s() - began_s)
        raise RunFailed(
            "ray-serve-failed",
            f"the application {self._name} had not ended after {waited}.",
            because=f"Ray Serve reports {left}",
            fix="see what is left: serve status; to end all applications of this Ray cluster: "
            "serve shutdown",
        )

    @property
    def _url(self) -> str:
        return f"{url_of(self._request.host, self._request.port)}/{self._name}"

    @property
    def _num_threads(self) -> int:
        """Of a replica: so many CPUs it takes of Ray's."""
        return self._start.num_threads or int(self._start.fixed.get("num_threads") or 1)

    def _waits(self) -> Iterator[Finding]:
        """The warning that there is no room in the cluster yet."""
        free = self._ray.available_resources()
        for kind, each, other in (
            ("CPU", self._num_threads, "fewer threads: --use num_threads=1"),
            ("GPU", int(self._num_gpus), "CPUs: --device cpu"),
        ):
            count = self.num_replicas * each
            if free.get(kind, 0) < count:
                yield Finding(
                    rule="ray-serve-waits",
                    severity="warning",
                    problem=f"Ray has {counted_text(int(free.get(kind, 0)), f'free {kind}')},"
                    f" and the replicas need {count}.",
                    because="Ray starts them when others have ended, or nodes were added",
                    fixes=(
                        Fix(text=f"use fewer --replicas, or {other}"),
                        Fix(text="see what is running: ray status"),
                    ),
                )

    def _at_address(self) -> ServeRequest:
        """The request with the address that Serve has in this cluster; starts it if needed."""

        def running() -> tuple[str | None, int]:
            version = self._ray.__version__
            return running_address(lambda: importlib.import_module("ray.serve.context"), version)

        try:
            return at_address(self._request, self._serve, running)
        except FlatoutError:
            raise
        except Exception as error:
            raise RunFailed(
                "ray-serve-failed",
                "Ray Serve could not be started.",
                because=_last_line(error),
                fix="see the logs of Ray: ray status, and /tmp/ray/session_latest/logs",
                printed=str(error),
            ) from error

    def _application(self) -> Any:
        """What Ray is to run. It is pickled: the token is in it as a hash only."""
        serve = self._serve
        build = builder(
            self._plan, limits_of(self._request), options_of(self._request), self._name
        )  # fmt: skip

        class DescribedIngress:
            app: RayApplication

            def __init__(self, board: Any) -> None:
                # Given so that Ray starts it; its handle is looked up by its name.
                pass

            def describe(self) -> bytes:
                return msgspec.json.encode(self.app.replica)

        board = serve.deployment(
            MetricsBoard,
            name=_BOARD,
            num_replicas=1,
            max_ongoing_requests=100,
            ray_actor_options={"num_cpus": 0},
        )
        replicas = serve.deployment(
            serve.ingress(build)(DescribedIngress),
            name="replicas",
            num_replicas=self.num_replicas,
            # Its own queue refuses what is too much, with a reason.
            max_ongoing_requests=2 * self._request.max_queue,
            graceful_shutdown_timeout_s=self._request.timeout_s,
            ray_actor_options={
                "num_cpus": self._num_threads, "num_gpus": self._num_gpus,
            },
        )  # fmt: skip
        return replicas.bind(board.bind())


def gpu_share(num_replicas: int, num_gpus: int) -> float:
    """The part of a GPU that each replica takes, so that all start, as without Ray; 0 without GPUs.

    Rounded down: with six times 0.1667 of a GPU, the last replica would wait forever.
    """
    if num_gpus == 0:
        return 0.0
    most_on_one = math.ceil(num_replicas / num_gpus)
    return (_GPU_PARTS // most_on_one) / _GPU_PARTS


def at_address(
    request: ServeRequest, serve: Any, running: Callable[[], tuple[str | None, int]]
) -> ServeRequest:
    """The request with the address that Serve has; starts it if needed.

    Args:
        request: with the address that was asked for.
        serve: the module `ray.serve`.
        running: finds the host and the port of the Serve that runs.

    Raises:
        UsageError: port-in-use, bad-address; RunFailed: ray-serve-failed.
    """
    # A Serve may run without proxies: then `start` joins it, whatever address it is given.
    has_proxies = bool(serve.status().proxies)
    if not has_proxies:
        with listening_socket(request.host, request.port) as listener:
            # Ray opens it by itself.
            request = msgspec.structs.replace(request, port=listener.getsockname()[1])
        serve.start(http_options={"host": request.host, "port": request.port})
    try:
        host, port = running()
    except RunFailed:
        if has_proxies:
            raise
        return request
    return msgspec.structs.replace(request, host=host or request.host, port=port)


def running_address(context: Callable[[], Any], version: str) -> tuple[str | None, int]:
    """Host and port of the Ray Serve that runs in this cluster.

    Ray has a public name for them only where its dashboard runs. Those used here are not public:
    tested with Ray 2.60.

    Args:
        context: loads the module `ray.serve.context`.
        version: of Ray.

    Raises:
        RunFailed: ray-serve-failed.
    """
    try:
        found = context()._get_global_client().http_config
        return found.host, int(found.port)
    except (ImportError, AttributeError, TypeError) as error:
        raise RunFailed(
            "ray-serve-failed",
            f"flatout cannot find the address of the Ray Serve that runs in Ray {version}.",
            because=str(error),
            fix="use Ray 2.60 on all machines: pip install 'ray[serve]==2.60.*'; or end that Ray "
            "Serve first, with all of its applications: serve shutdown",
        ) from error


def left_after(status: Callable[[], Any], name: str, limit_s: float) -> str | None:
    """Waits until an application has ended; gives what is left of it, None if nothing.

    Args:
        status: `ray.serve.status`.
        name: of the application.
        limit_s: for waiting. It looks at least once.
    """
    end_s = clock.elapsed_s() + limit_s
    while True:
        application = status().applications.get(name)
        if application is None or application.status == "NOT_STARTED":
            return None
        if clock.elapsed_s() >= end_s:
            break
        clock.sleep_s(_POLL_S)
    replicas = [
        f"{count} {getattr(state, 'value', state)}"
        for deployment in application.deployments.values()
        for state, count in deployment.replica_states.items()
        if count
    ]
    state = getattr(application.status, "value", application.status)
    return f"{state}; replicas: {', '.join(replicas) or 'none'}"


def builder(
    plan: ReplicaPlan, limits: DispatchLimits, options: ApplicationOptions, name: str
) -> Callable[[], RayApplication]:
    """What makes the application in an actor of Ray's. It is pickled with all that is in it.

    Args:
        plan: one replica.
        limits, options: of the application.
        name: of the application in Ray Serve.
    """

    def build() -> RayApplication:
        board = importlib.import_module("ray.serve").get_deployment_handle(_BOARD, name)
        return RayApplication(plan, limits, options, board.push.remote, board.collect.remote)

    return build


def _imported() -> tuple[Any, Any]:
    """Ray and Ray Serve.

    Raises:
        UsageError: ray-not-installed.
    """
    try:
        # Not by a statement: nothing else may load them.
        ray, serve = importlib.import_module("ray"), importlib.import_module("ray.serve")
    except ImportError as error:
        raise UsageError(
            "ray-not-installed",
            "`--on ray` needs Ray Serve, which is not installed.",
            because=str(error),
            fix="pip install 'flatout[ray]' 'ray[serve]'",
        ) from error
    # It reports every step of its own.
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    return ray, serve


def _numbered_gpu(device: str) -> list[Finding]:
    return [
        option_without_effect(
            f"--device {device}",
            "Ray chooses the GPU of each replica",
            "write --device cuda; a Ray of its own has the GPUs in CUDA_VISIBLE_DEVICES",
        )
    ]


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
        fix="run the command on a machine of the cluster where Ray Serve answers, such as its head",
    )


def _last_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1].strip() if lines else repr(error)
