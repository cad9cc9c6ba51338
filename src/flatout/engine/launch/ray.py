"""Ranks placed by Ray, each in a process of its own on a node that has room for it.

Ray only places: it starts none of them again, and knows nothing of the training. A rank's standard
input is a pipe that its actor holds, so that it stops with a checkpoint when its actor, its node or
this driver goes.
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from flatout.engine.launch.job import Job, rank_variables, tell
from flatout.errors import FlatoutError, RunFailed, UsageError
from flatout.nouns.placement import ending_code
from flatout.system import clock

_POLLED_EVERY_S = 0.2
# After one rank has failed, the others notice by themselves, and rank 0 tells it. Where it was that
# one itself, there is nobody left to tell it to.
_GRACE_S = 20.0
_GRACE_WITHOUT_FIRST_S = 5.0
# For the nodes to have room, and for their processes to start.
_PLACE_LIMIT_S = 60.0
_COUNTED_EVERY_S = 5.0
_KILLED = -9


def launch(job: Job) -> int:
    """Has Ray place the ranks, waits until all have ended, and gives the launcher's exit code."""
    try:
        _connect()
        group, bundles = _reserve(job.num_ranks)
        job = replace(job, num_ranks=len(bundles))
        try:
            codes = _attend(job, _place(job, group, bundles))
        finally:
            remove_placement_group(group)
            ray.shutdown()
    except FlatoutError as error:
        return tell(job, error)
    for rank, code in codes.items():
        if code:
            print(f"rank {rank} of {job.num_ranks} ended with code {code}", file=sys.stderr)
    return ending_code(codes)


def _connect() -> None:
    """Joins the Ray that runs here.

    Raises:
        UsageError: ray-not-running.
    """
    try:
        ray.init(address=os.environ.get("RAY_ADDRESS", "auto"), log_to_driver=False,
                 logging_level="ERROR")  # fmt: skip
    except (ConnectionError, RayError, RuntimeError, ValueError) as error:
        raise UsageError(
            "ray-not-running",
            "no Ray runs here that could place the ranks.",
            because=str(error).splitlines()[0][:200],
            fix="ray start --head; or make a cluster of containers: flatout cluster init",
        ) from error


def _reserve(wanted: int) -> tuple[Any, list[dict[str, float]]]:
    """Room for the ranks: the group that Ray keeps it in, and what each rank gets of it.

    What there is room for is counted again while it is waited for: that a node is gone, Ray
    notices only after a while.

    Args:
        wanted: how many ranks; 0 for as many as there is room for.

    Raises:
        UsageError: ranks-do-not-fit; RunFailed: ranks-not-placed.
    """
    end = clock.elapsed_s() + _PLACE_LIMIT_S
    while True:
        bundles = _bundles(wanted or _room())
        group = placement_group(bundles, strategy="SPREAD")
        if group.wait(_COUNTED_EVERY_S):
            return group, bundles
        remove_placement_group(group)
        if clock.elapsed_s() > end:
            raise RunFailed(
                "ranks-not-placed",
                f"Ray has not found room for {len(bundles)} ranks.",
                because=f"it was waited for {_PLACE_LIMIT_S:.0f} s; others may hold what it has",
                fix="flatout cluster status tells what the nodes have, ray status who holds it",
            )


def _room() -> int:
    """How many ranks there are to be where nobody has said it: one for each GPU, or each node."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return int(sum(node.get("GPU", 0) for node in nodes)) or sum("CPU" in node for node in nodes)


def _bundles(num_ranks: int) -> list[dict[str, float]]:
    """What each rank takes: a GPU if the cluster has any, and as many CPUs as leave room for all.

    Raises:
        UsageError: ranks-do-not-fit.
    """
    total = ray.cluster_resources()
    num_gpus, num_cpus = int(total.get("GPU", 0)), int(total.get("CPU", 0))
    room = min(num_gpus or num_cpus, num_cpus)
    if num_ranks > room:
        what = f"{num_gpus} GPUs" if num_gpus else f"{num_cpus} CPUs"
        raise UsageError(
            "ranks-do-not-fit",
            f"{num_ranks} ranks are more than the cluster has room for.",
            because=f"it has {what}, and each rank takes one",
            fix=f"--on with {room} ranks" if room else "flatout cluster status tells what it has",
        )
    return [{"CPU": 1.0, **({"GPU": 1.0} if num_gpus else {})} for _ in range(num_ranks)]


def _place(job: Job, group: Any, bundles: list[dict[str, float]]) -> list[Any]:
    """Actors, one for each rank, that have started it.

    Raises:
        RunFailed: ranks-not-placed.
    """
    try:
        actors = [
            ray.remote(Rank)
            .options(
                num_cpus=bundle["CPU"],
                num_gpus=bundle.get("GPU", 0),
                max_restarts=0,
                max_task_retries=0,
                max_concurrency=4,
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, index),
            )
            .remote()
            for index, bundle in enumerate(bundles)
        ]
        nodes = ray.get([actor.node.remote() for actor in actors], timeout=_PLACE_LIMIT_S)
        place = ray.get(actors[0].meeting_place.remote(), timeout=_PLACE_LIMIT_S)
        starts = [
            actor.start.remote(
                job.command(), _variables(rank, bundles[rank], nodes, place), str(job.folder)
            )
            for rank, actor in enumerate(actors)
        ]
        ray.get(starts, timeout=_PLACE_LIMIT_S)
    except (GetTimeoutError, RayError) as error:
        raise RunFailed(
            "ranks-not-placed",
            f"Ray has not started {len(bundles)} ranks.",
            because=f"after {_PLACE_LIMIT_S:.0f} s at most: {_first_line(error)}",
            fix="flatout cluster status tells what the nodes have, ray status what they wait for",
        ) from error
    return actors


def _variables(
    rank: int, bundle: dict[str, float], nodes: list[dict[str, Any]], place: tuple[str, int]
) -> dict[str, str]:
    """A rank's variables; its threads are its share of what Ray was told that its node has."""
    # Of GPUs it sees its own alone, whatever its number among the node's ranks.
    has_gpu = "GPU" in bundle
    mates = [other for other, node in enumerate(nodes) if node["id"] == nodes[rank]["id"]]
    cpus = next((int(one["Resources"].get("CPU", 1)) for one in ray.nodes()
                 if one["NodeID"] == nodes[rank]["id"]), 1)  # fmt: skip
    own = rank_variables(
        rank,
        len(nodes),
        local_rank=0 if has_gpu else mates.index(rank),
        num_local=1 if has_gpu else len(mates),
        place=place,
    )
    return {**own, "OMP_NUM_THREADS": str(max(1, cpus // len(mates)))}


def _attend(job: Job, ranks: list[Any]) -> dict[int, int]:
    """How each rank has ended; once one has failed, the others are waited for only so long."""
    waits = {actor.wait.remote(): rank for rank, actor in enumerate(ranks)}
    codes: dict[int, int] = {}
    failed_s: float | None = None
    is_asked = False
    while waits:
        done, _ = ray.wait(list(waits), num_returns=1, timeout=_POLLED_EVERY_S)
        for reference in done:
            codes[waits.pop(reference)] = _code(reference)
        if failed_s is None and any(codes.values()):
            failed_s = clock.elapsed_s()
        if not is_asked and _is_cut(job):
            is_asked = True
            for actor in ranks:
                actor.stop.remote()
        grace_s = _GRACE_WITHOUT_FIRST_S if 0 in codes else _GRACE_S
        if failed_s is not None and clock.elapsed_s() - failed_s > grace_s:
            break
    for rank in waits.values():
        # Its actor's end ends the rank's standard input, and Ray ends the actor's children.
        ranks[rank].end.remote()
        codes[rank] = _KILLED
    return codes


def _code(reference: Any) -> int:
    try:
        return int(ray.get(reference))
    except RayActorError:
        # The actor went with its node, or was killed.
        return _KILLED


def _is_cut(job: Job) -> bool:
    """Whether somebody has asked to stop: the reading end of the lifeline has come to its end."""
    if sys.platform == "win32":
        # A pipe cannot be looked at there; Ray's actors end with this driver, and their ranks stop.
        return False
    ready, _, _ = select.select([job.lifeline.reading], [], [], 0)
    return bool(ready)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


class Rank:
    """An actor that holds one rank's process on its node."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._writing: int | None = None
        self._lock = threading.Lock()

    def node(self) -> dict[str, Any]:
        """On which node Ray has placed it."""
        return {"id": ray.get_runtime_context().get_node_id(), "host": socket.gethostname()}

    def meeting_place(self) -> tuple[str, int]:
        """Address of this node, as the others see it, and a port that is free there."""
        with socket.socket() as one:
            one.bind(("", 0))
            return ray.util.get_node_ip_address(), int(one.getsockname()[1])

    def start(self, command: list[str], variables: dict[str, str], folder: str) -> None:
        """Starts the rank's process; its log lies in the run's folder."""
        reading, self._writing = os.pipe()
        # Further ranks open a log of their own.
        with open(os.path.join(folder, "worker.log"), "ab") as log:
            self._process = subprocess.Popen(
                command, env={**os.environ, **variables}, stdin=reading, stdout=log,
                stderr=subprocess.STDOUT,
            )  # fmt: skip
        os.close(reading)

    def wait(self) -> int:
        """Waits until the rank has ended; its exit code."""
        assert self._process is not None
        return self._process.wait()

    def stop(self) -> None:
        """Asks the rank to stop with a checkpoint."""
        with self._lock:
            if self._writing is not None:
                os.close(self._writing)
                self._writing = None

    def end(self) -> None:
        """Ends the rank at once."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
