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
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import psutil

from flatout import __version__
from flatout.engine.launch.job import RankJob, log_refusal, rank_variables, say
from flatout.engine.launch.ray_cluster import (
    PLACE_LIMIT_S,
    Bundle,
    NoAnswer,
    RayCluster,
    join,
    ray_module,
)
from flatout.engine.ranks.listen_socket import handed_on
from flatout.errors import FlatoutError, RunFailed, UsageError
from flatout.schema.change import Change
from flatout.schema.placement import NodeCapacity, ending_code, take_gpus
from flatout.schema.run import RunHeader
from flatout.schema.units import counted_text
from flatout.system import atomic_files
from flatout.system.process_env import ranks_limit, worker_environment
from flatout.system.store.run_folder import RunFolder
from flatout.system.store.shutdown_grace import ShutdownGrace

_POLLED_EVERY_S = 0.2
_END_LIMIT_S = 10.0
_KILLED = -9
_THREADS = "OMP_NUM_THREADS"


def launch(job: RankJob) -> int:
    """Has Ray place the ranks, waits until all have ended, and gives the launcher's exit code."""
    try:
        grace = ShutdownGrace(RunFolder(job.folder))
        with join() as cluster:
            bundles = _reserve(job, cluster)
            job = replace(job, num_ranks=len(bundles))
            codes = _attend(job, cluster, _start_ranks(job, cluster, bundles), grace)
    except FlatoutError as error:
        return log_refusal(job, error)
    for rank, code in codes.items():
        if code:
            say(f"rank {rank} of {job.num_ranks} exited with code {code}")
    return ending_code(codes)


def _reserve(job: RankJob, cluster: RayCluster) -> list[Bundle]:
    """Resources for the ranks; as many ranks as fit if no number is given.

    Raises:
        UsageError: ranks-do-not-fit; RunFailed: ranks-not-placed.
    """
    device = _device(job)

    def requested_bundles() -> list[Bundle]:
        nodes = [node["Resources"] for node in cluster.nodes()]
        return rank_bundles(nodes, job.num_ranks, device)

    bundles = cluster.reserve(requested_bundles)
    if not bundles:
        count = f"{counted_text(job.num_ranks, 'rank')}" if job.num_ranks else "any rank"
        raise RunFailed(
            "ranks-not-placed",
            f"Ray found no resources for {count}.",
            because=f"waited {PLACE_LIMIT_S:.0f} s; "
            + (
                "other jobs may hold its resources"
                if requested_bundles()
                else "none of its nodes has a CPU"
            ),
            fix="flatout cluster status shows what the nodes have, ray status who holds it",
        )
    return bundles


def _device(job: RankJob) -> str:
    """The device that the user has chosen; `auto` by default."""
    spec = atomic_files.read_json(RunFolder(job.folder).header, RunHeader).spec
    return spec.device(msgspec.json.decode(job.change, type=Change))


def rank_bundles(
    nodes: Sequence[Mapping[str, float]], num_requested: int, device: str
) -> list[Bundle]:
    """The resources of each rank: a GPU, if the cluster has any that may be used, else a CPU.

    With a GPU it takes a share of the CPUs that leaves some for the ranks on the node's other GPUs.

    Args:
        nodes: the resources of each.
        num_requested: how many ranks; 0 for one on each GPU, or else one on each node.
        device: as asked for: `auto`, `cpu`, `cuda` or `cuda:N`.

    Returns:
        Nothing while no node has a CPU.

    Raises:
        UsageError: ranks-do-not-fit.
    """
    computing = [
        NodeCapacity(num_cpus=int(node["CPU"]), num_gpus=int(node.get("GPU", 0)))
        for node in nodes
        if node.get("CPU", 0) >= 1
    ]
    if not computing:
        return []
    if not take_gpus(computing, num_requested, device):
        return [{"CPU": 1.0}] * (num_requested or len(computing))
    with_gpu = [node for node in computing if node.num_gpus]
    cpus_per_rank = min(1.0, *(node.num_cpus / node.num_gpus for node in with_gpu))
    # Ray counts in ten thousandths.
    num_gpus = sum(node.num_gpus for node in with_gpu)
    return [{"CPU": int(cpus_per_rank * 1e4) / 1e4, "GPU": 1.0}] * (num_requested or num_gpus)


def _start_ranks(job: RankJob, cluster: RayCluster, bundles: list[Bundle]) -> list[Any]:
    """Actors, one for each rank, that have started it.

    Raises:
        RunFailed: ranks-not-placed; UsageError: cluster-versions-differ, run-not-shared.
    """
    try:
        actors = cluster.actors(Rank, bundles)
        nodes = cluster.fetch([actor.node.remote(str(job.folder)) for actor in actors])
        refuse_unfit(nodes, str(job.folder))
        (rendezvous,) = cluster.fetch([actors[0].rendezvous_address.remote()])
        cpus = {node["NodeID"]: int(node["Resources"].get("CPU", 1)) for node in cluster.nodes()}
        cluster.fetch(
            [
                actor.start.remote(
                    job.command(),
                    own_variables(
                        rank, nodes, cpus, has_gpu="GPU" in bundles[rank], rendezvous=rendezvous
                    ),
                    str(job.folder),
                )
                for rank, actor in enumerate(actors)
            ]
        )
    except NoAnswer as error:
        raise RunFailed(
            "ranks-not-placed",
            f"Ray did not start {counted_text(len(bundles), 'rank')}.",
            because=str(error),
            fix="every node needs this flatout, with torch; flatout cluster status shows what "
            "the nodes have, ray status what they wait for",
        ) from error
    return actors


def refuse_unfit(nodes: Sequence[Mapping[str, Any]], folder: str) -> None:
    """Refuses nodes that would train something else, or elsewhere.

    Args:
        nodes: of each rank, as `Rank.node` returns it.
        folder: of the run.

    Raises:
        UsageError: cluster-versions-differ, run-not-shared.
    """
    others = {node["host"]: node["version"] for node in nodes if node["version"] != __version__}
    if others:
        raise UsageError(
            "cluster-versions-differ",
            "the nodes have different versions of flatout.",
            because=f"{__version__} where the ranks are started; "
            + ", ".join(f"{version} on {host}" for host, version in others.items()),
            fix="install the same version on all; flatout cluster up does this for containers",
        )
    blind = sorted({node["host"] for node in nodes if not node["sees"]})
    if blind:
        raise UsageError(
            "run-not-shared",
            f"{folder} is not visible on {', '.join(blind)}.",
            because="every rank reads the run at the same path, and rank 0 writes it",
            fix="put the folder of runs on a disk that all machines mount at the same path: "
            "FLATOUT_STATE",
        )


def own_variables(
    rank: int,
    nodes: Sequence[Mapping[str, Any]],
    cpus: Mapping[str, int],
    *,
    has_gpu: bool,
    rendezvous: tuple[str, int],
) -> dict[str, str]:
    """A rank's variables.

    Its threads are what the user has set here or on the node, or else its share of the CPUs
    that Ray has for the node.

    Args:
        rank: its number.
        nodes: of each rank, as `Rank.node` returns it.
        cpus: of each node, by its id.
        has_gpu: it sees one, its own, whatever its number among the node's ranks.
        rendezvous: host and port where rank 0 waits for the others.
    """
    id = nodes[rank]["id"]
    mates = [other for other, node in enumerate(nodes) if node["id"] == id]
    own = rank_variables(
        rank,
        len(nodes),
        local_rank=0 if has_gpu else mates.index(rank),
        num_local=len(mates),
        rendezvous=rendezvous,
    )
    threads = os.environ.get(_THREADS) or nodes[rank]["threads"]
    share = max(1, cpus.get(id, 1) // len(mates))
    return {**own, **ranks_limit(), _THREADS: threads or str(share)}


def _attend(
    job: RankJob, cluster: RayCluster, ranks: list[Any], grace: ShutdownGrace
) -> dict[int, int]:
    """The exit code of each rank; once one has ended, the others have a limited time."""
    ray = cluster.ray
    waits = {actor.wait.remote(): rank for rank, actor in enumerate(ranks)}
    codes: dict[int, int] = {}
    is_stopping = False
    while waits and not grace.is_over(codes):
        done, _ = ray.wait(list(waits), num_returns=1, timeout=_POLLED_EVERY_S)
        for reference in done:
            codes[waits.pop(reference)] = _code(cluster, reference)
        if not is_stopping and _is_cut(job):
            is_stopping = True
            for actor in ranks:
                actor.stop.remote()
    if waits:
        # It is waited for: the end of its actor would only close a pipe, which a rank that hangs
        # does not read. A node that was cut off cannot be asked.
        ended = [ranks[rank].end.remote() for rank in waits.values()]
        ray.wait(ended, num_returns=len(ended), timeout=_END_LIMIT_S)
    return codes | dict.fromkeys(waits.values(), _KILLED)


def _code(cluster: RayCluster, reference: Any) -> int:
    try:
        return int(cluster.fetch([reference])[0])
    except NoAnswer:
        # The actor went with its node, or was killed.
        return _KILLED


def _is_cut(job: RankJob) -> bool:
    """Whether a stop was requested: the lifeline was closed."""
    if sys.platform == "win32":
        # A pipe cannot be looked at there; Ray's actors end with this driver, and their ranks stop.
        return False
    ready, _, _ = select.select([job.lifeline.reading], [], [], 0)
    return bool(ready)


class Rank:
    """An actor that holds one rank's process on its node."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._writing: int | None = None
        self._listening: socket.socket | None = None
        self._lock = threading.Lock()

    def node(self, folder: str) -> dict[str, Any]:
        """The node on which Ray has placed it, with its facts for the run in this folder.

        threads: set there by the user. Ray sets them, too, once the actor's process runs.
        """
        return {
            "id": ray_module().get_runtime_context().get_node_id(),
            "host": socket.gethostname(),
            "version": __version__,
            "sees": RunFolder(Path(folder)).header.is_file(),
            "threads": psutil.Process().environ().get(_THREADS),
        }

    def rendezvous_address(self) -> tuple[str, int]:
        """Address of this node, as the others see it, and a port at which its rank is to wait.

        The port is kept until the rank has it: found free and let go, it could be taken in the
        meantime.
        """
        host = str(ray_module().util.get_node_ip_address())
        try:
            self._listening = socket.create_server((host, 0))
            return host, int(self._listening.getsockname()[1])
        except OSError:  # An address that leads here without being this machine's own.
            with socket.create_server(("", 0)) as listening:
                return host, int(listening.getsockname()[1])

    def start(self, command: list[str], variables: dict[str, str], folder: str) -> None:
        """Starts the rank's process; its log is in the run's folder."""
        reading, self._writing = os.pipe()
        given, files = handed_on(self._listening) if self._listening else ({}, ())
        # Further ranks open a log of their own.
        with open(os.path.join(folder, "worker.log"), "ab") as log:
            self._process = subprocess.Popen(
                command, env={**worker_environment(), **variables, **given}, stdin=reading,
                stdout=log, stderr=subprocess.STDOUT, pass_fds=files,
            )  # fmt: skip
        os.close(reading)
        if self._listening:
            self._listening.close()

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
        """Kills the rank."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
