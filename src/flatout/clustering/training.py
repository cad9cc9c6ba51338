"""Training over a cluster: the run's folder lies where both sides see it, and its nodes train.

A cluster of Ray is handed a job. In any other, each node is given a launcher of its own. Neither
starts anything again: the command line makes the run, follows it, and starts it again where that
is to be.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import msgspec

from flatout import __version__, flow
from flatout.cluster.settings import address_in, engine_in
from flatout.clustering import placing
from flatout.clustering.files import Folder, open_folder
from flatout.clustering.ray_head import ray_head, ray_token
from flatout.clustering.running import require_well, state
from flatout.errors import UsageError
from flatout.nouns.change import Change
from flatout.nouns.cluster import ClusterState
from flatout.nouns.placement import CLUSTER, Placement
from flatout.nouns.train_request import TrainRequest
from flatout.system import (
    cluster_folder,
    folders,
    ray_jobs,
    store,
    tail,
    variables,
)  # fmt: skip
from flatout.system.attendance import Attendance, Running
from flatout.system.interrupts import Interrupts
from flatout.system.node_job import NodeJob
from flatout.system.ray_jobs import RayHead
from flatout.system.runs import RunFolder
from flatout.undertaking import run_for, take_up


class Where(msgspec.Struct, frozen=True, kw_only=True):
    """Who trains. head: of a Ray; None where the nodes are given launchers.

    folder: of the cluster of containers that it is; None for a Ray of other machines.
    is_gpu_shared: workers of it compute on the same GPU.
    now: that cluster as it was just looked at, where its nodes are given launchers.
    """

    head: RayHead | None = None
    folder: Folder | None = None
    is_gpu_shared: bool = False
    now: ClusterState | None = None

    def inside(self, path: Path) -> str:
        """A path as the nodes see it; without containers all machines see the same.

        Raises:
            UsageError: run-not-shared, bad-cluster-setting.
        """
        if self.folder is None:
            return str(path)
        inside = self.folder.inside(path)
        if inside is None:
            shared = self.folder.shared("CLUSTER_RUNS")
            raise UsageError(
                "run-not-shared",
                f"{path} is not seen by the nodes of the cluster.",
                because=f"they see {shared}, as CLUSTER_RUNS in .env says",
                fix="flatout cluster init writes the folder of runs that is used here",
            )
        return inside


def begin(request: TrainRequest, interrupts: Interrupts) -> Attendance:
    """Makes a new run, or takes up an old one, and hands it to a cluster.

    It goes on without whoever has begun it, and is asked to stop by a file.

    Args:
        request: what was asked for; its placement names the cluster.
        interrupts: Ctrl-C.

    Raises:
        UsageError: no-cluster-here, run-not-shared, ranks-do-not-fit, ranks-share-a-gpu,
            not-a-ray-address, and, where the cluster's folder is here, what `judge_nodes` refuses;
            RunFailed: ray-not-answering; KeyboardInterrupt: Ctrl-C was pressed before.
    """
    request.check()
    on = request.placement
    assert on is not None and on.place is not None
    where = _where(on)
    if where.head is not None:
        ray_jobs.version(where.head)
    # The nodes have an interpreter of their own.
    asked = take_up(msgspec.structs.replace(request, python=None, env=None), interrupts)
    if asked.spec.init is not None and asked.old is None:
        spec = msgspec.structs.replace(asked.spec, init=where.inside(Path(asked.spec.init)))
        asked = msgspec.structs.replace(asked, spec=spec)
    # Where ranks are placed by flatout itself, no two are given the same GPU.
    if where.is_gpu_shared and on.num_ranks != 1 and asked.device != "cpu":
        raise UsageError(
            "ranks-share-a-gpu",
            "workers of this cluster share a GPU, and Ray could place two ranks on it.",
            because="NCCL, which carries gradients between GPUs, refuses two ranks on one of them",
            fix="use --on cluster:1; or train on the CPUs: --device cpu",
        )
    # Before there is a run, which nobody would train.
    where.inside(asked.old.path if asked.old else folders.runs_folder())
    if where.now is not None:
        placing.ranks_of(placing.computing_nodes(where.now), on.num_ranks, asked.device)
    machine = flow.probe(sys.executable)
    with run_for(asked, machine, interrupts) as folder:
        end = tail.Tail(folder, is_from_end=True)
        worker = _start(where, folder, on, asked.device, asked.change)
    # Later the nodes are asked anew, since some may be gone.
    later = msgspec.structs.replace(where, now=None)
    return Attendance(
        folder=folder, machine=machine, worker=worker, tail=end, change=asked.change,
        start=partial(_start, later, folder, on, asked.device), are_ranks=True,
        is_new=asked.old is None,
    )  # fmt: skip


def _where(on: Placement) -> Where:
    """Who trains, by what `--on` names, and whether it can.

    Raises:
        UsageError: no-cluster-here, and what is wrong with its nodes.
    """
    if on.place != CLUSTER:
        address = ray_jobs.check_address(on.place or "")
        own = _own_cluster(address)
        token = ray_token(own) if own is not None else ray_jobs.own_token()
        return Where(head=RayHead(address=address, token=token), folder=own)
    folder = open_folder(None)
    now = require_well(folder)
    if engine_in(folder.settings) == "ray":
        is_shared = placing.is_gpu_shared(now)
        return Where(head=ray_head(folder), folder=folder, is_gpu_shared=is_shared)
    return Where(folder=folder, now=now)


def _own_cluster(address: str) -> Folder | None:
    """The cluster whose folder is here, if the address is that of its dashboard."""
    try:
        folder = open_folder(None)
        own = address_in(folder.settings, "CLUSTER_DASHBOARD_PORT")
    except UsageError:
        return None
    same = address.replace("//localhost:", "//127.0.0.1:")
    return folder if same == f"http://{own}" else None


def _hand_over(where: Where, folder: RunFolder) -> None:
    with store.mapped_os_errors(folder.log):
        folder.log.touch()
    if where.folder is not None:
        cluster_folder.hand_over(folder.path, *where.folder.owner)


def _start(where: Where, folder: RunFolder, on: Placement, device: str, change: Change) -> Running:
    """Starts a training, or starts it again with the nodes that are left.

    Raises:
        UsageError: ranks-do-not-fit; RunFailed: ray-not-answering, docker-failed.
    """
    # What root makes here is written by another in the containers.
    _hand_over(where, folder)
    inside = where.inside(folder.path)
    if where.head is not None:
        return _submit(where.head, inside, folder, on, change)
    assert where.folder is not None
    nodes = placing.computing_nodes(where.now or state(where.folder))
    placed = placing.ranks_of(nodes, on.num_ranks, device)
    return NodeJob(placing.parts(placed, inside, change), inside, folder)


def _submit(
    head: RayHead, inside: str, folder: RunFolder, on: Placement, change: Change
) -> ray_jobs.RayJob:
    # Ray sets the threads of its own processes, not those of ranks; a limit holds for these, too.
    own = [f"{name}={value}" for name, value in variables.ranks_limit().items()]
    command = ["env", "-u", "OMP_NUM_THREADS", *own]
    command += ["python3", "-P", "-m", "flatout.engine.launch", inside, "--on", str(on)]
    command += ["--flatout", __version__]
    if change != Change():
        command += ["--change", change.as_option()]
    return ray_jobs.submit(head, command, f"{inside}/{folder.log.name}", folder.log)
