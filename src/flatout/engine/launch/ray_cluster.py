"""A Ray that places processes: joined, asked for room and listened to, each within a limit.

Ray itself waits without one: for a head that is gone, for resources that no node has, for a node
that was cut off. It starts nothing again here, since flatout alone does that.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from flatout.errors import RunFailed, UsageError
from flatout.system import clock
from flatout.system.port_check import check_port
from flatout.system.process_env import head_address

# What a process takes of its node: so much of each of Ray's resources.
Bundle = dict[str, float]

# For nodes to have room, and for their processes to start and to answer.
PLACE_LIMIT_S = 60.0
_COUNTED_EVERY_S = 5.0
# The line of a traceback that says what was raised.
_RAISED = re.compile(r"[A-Za-z_.]*(Error|Exception|Exit|Interrupt)\b.*")


class NoAnswer(Exception):
    """A node has not answered in time, or could not; its text says why."""


class RayCluster:
    """A Ray that this process has joined, until the block ends. ray: its module."""

    def __init__(self, ray: Any) -> None:
        self.ray = ray
        self._group: Any = None

    def __enter__(self) -> RayCluster:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # A head that is gone has nothing left to give back.
        with contextlib.suppress(self.ray.exceptions.RayError):
            self._release()
        self.ray.shutdown()

    def nodes(self) -> list[dict[str, Any]]:
        """Ray's report on the nodes it can reach."""
        return [node for node in self.ray.nodes() if node["Alive"]]

    def reserve(
        self, requested_bundles: Callable[[], list[Bundle]], limit_s: float = PLACE_LIMIT_S
    ) -> list[Bundle]:
        """Has Ray keep room, spread over its machines: for all that is requested, or for nothing.

        Args:
            requested_bundles: what each process takes; empty while the nodes have nothing. It is
                called again as long as there is no room: that a node is gone, Ray notices only
                after a while.
            limit_s: how long room is waited for.

        Returns:
            What each process gets; empty where there was no room in time.
        """
        end_s = clock.elapsed_s() + limit_s
        while True:
            bundles = requested_bundles()
            if bundles:
                self._group = self.ray.util.placement_group(bundles, strategy="SPREAD")
                if self._group.wait(_COUNTED_EVERY_S):
                    return bundles
                self._release()
            else:
                clock.sleep_s(_COUNTED_EVERY_S)
            if clock.elapsed_s() > end_s:
                return []

    def actors(self, kind: type, bundles: Sequence[Bundle]) -> list[Any]:
        """An actor in each place that was reserved; Ray starts none of them again."""
        remote = self.ray.remote(kind)
        strategy = self.ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
        return [
            remote.options(
                num_cpus=bundle.get("CPU", 0),
                num_gpus=bundle.get("GPU", 0),
                max_restarts=0,
                max_task_retries=0,
                # One waits for a process while another ends it.
                max_concurrency=4,
                scheduling_strategy=strategy(self._group, number),
            ).remote()
            for number, bundle in enumerate(bundles)
        ]

    def fetch(self, references: Sequence[Any], limit_s: float = PLACE_LIMIT_S) -> list[Any]:
        """The answers of actors, once all have answered.

        Raises:
            NoAnswer: one has not within the limit, or could not.
        """
        try:
            return list(self.ray.get(list(references), timeout=limit_s))
        except self.ray.exceptions.GetTimeoutError as error:
            raise NoAnswer(f"no answer within {limit_s:g} s") from error
        except self.ray.exceptions.RayError as error:
            raise NoAnswer(error_line(error)) from error

    def _release(self) -> None:
        if self._group is not None:
            self.ray.util.remove_placement_group(self._group)
            self._group = None


def join(address: str | None = None) -> RayCluster:
    """Joins a Ray.

    Args:
        address: of its head, HOST:PORT; None for the one that RAY_ADDRESS names or that runs here.

    Raises:
        UsageError: ray-not-installed; RunFailed: scheduler-not-reachable.
    """
    ray = ray_module()
    where = address or head_address("ray")
    has_answered = False
    try:
        if where:
            check_port(where)
            has_answered = True
        _init(ray, {"address": where or "auto"})
    except Exception as error:  # Ray has several for an unreachable head.
        if has_answered:
            raise RunFailed(
                "scheduler-not-reachable",
                f"cannot connect to Ray at {where}, although the port answers.",
                because=error_line(error),
                fix="compare the versions of Ray and Python with those of the head node, and its "
                "token (RAY_AUTH_MODE=token, RAY_AUTH_TOKEN_PATH); check that /tmp has free space",
            ) from error
        raise RunFailed(
            "scheduler-not-reachable",
            f"Ray does not answer at {where}." if where else "Ray is not running here.",
            because=error_line(error),
            fix="check the address (RAY_ADDRESS; flatout ingest: --address), and that the head "
            "node is running"
            if where
            else "start one (ray start --head), or give its address: RAY_ADDRESS=HOST:6379; or "
            "create a cluster of containers: flatout cluster init",
        ) from error
    return RayCluster(ray)


def begin(num_cpus: int) -> RayCluster:
    """A Ray of this process's own, with so many CPUs, whether or not another one runs here.

    Raises:
        UsageError: ray-not-installed; RunFailed: scheduler-not-reachable.
    """
    ray = ray_module()
    try:
        _init(ray, {"address": "local", "num_cpus": num_cpus, "include_dashboard": False})
    except Exception as error:
        raise RunFailed(
            "scheduler-not-reachable",
            "Ray could not be started.",
            because=error_line(error),
            fix="see its output; or work without Ray: --on local",
        ) from error
    return RayCluster(ray)


def _init(ray: Any, settings: dict[str, Any]) -> None:
    ray.init(log_to_driver=False, logging_level="ERROR", **settings)


def ray_module() -> Any:
    """Ray itself.

    Raises:
        UsageError: ray-not-installed.
    """
    try:
        import ray
    except ModuleNotFoundError as error:
        # Something it needs may be lacking: then it is there, but broken, and says so itself.
        if error.name != "ray":
            raise
        raise UsageError(
            "ray-not-installed",
            "Ray is not installed in this environment.",
            because=str(error),
            fix="pip install 'flatout[ray]' there, or use a cluster that has it: --on cluster",
        ) from error
    return ray


def error_line(error: BaseException) -> str:
    """One line of a Ray error: the exception raised on a node, if any, or else the first line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    raised = [line for line in lines if _RAISED.fullmatch(line)]
    return (raised or lines or [""])[-1 if raised else 0][:200] or type(error).__name__
