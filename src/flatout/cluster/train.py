"""Training over a cluster: the run's folder is visible to both sides, and its nodes train.

A Ray cluster gets a job. In any other, each node gets a launcher. Neither restarts anything: the
command line creates the run, follows it, and restarts it if necessary.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import msgspec

from flatout import __version__
from flatout.cluster import rank_assignment, ray_jobs
from flatout.cluster.compose import cluster_folder
from flatout.cluster.compose.env_file import address_in, engine_in
from flatout.cluster.containers import require_well, state
from flatout.cluster.files import Folder, open_folder
from flatout.cluster.model.cluster import ClusterState
from flatout.cluster.node_job import NodeJob
from flatout.cluster.ray_head import ray_head, ray_token
from flatout.cluster.ray_jobs import RayHead
from flatout.errors import UsageError
from flatout.runs import api as runs_api
from flatout.runs.start import plan_run, run_for
from flatout.runs.supervisor import Running, Supervisor
from flatout.schema.change import Change
from flatout.schema.placement import CLUSTER, Placement
from flatout.schema.train_request import TrainRequest
from flatout.schema.worker_command import worker_command
from flatout.system import atomic_files, paths, process_env
from flatout.system.host_system import System
from flatout.system.signals import Interrupts
from flatout.system.store import run_tail  # fmt: skip
from flatout.system.store.run_folder import RunFolder


class ClusterTarget(msgspec.Struct, frozen=True, kw_only=True):
    """Where a training runs. head: of a Ray cluster; None if its nodes get launchers.

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
        return self.folder.run_inside(path) if self.folder is not None else str(path)


def begin(request: TrainRequest, interrupts: Interrupts) -> Supervisor:
    """Creates a new run, or resumes an old one, and starts it on a cluster.

    It continues without the command that started it; a file asks it to stop.

    Args:
        request: what was requested; its placement names the cluster.
        interrupts: Ctrl-C.

    Raises:
        UsageError: no-cluster-here, run-not-shared, ranks-do-not-fit, ranks-share-a-gpu,
            not-a-ray-address, and, where the cluster's folder is here, what `judge_nodes` refuses;
            RunFailed: ray-not-answering; KeyboardInterrupt: Ctrl-C was pressed before.
    """
    request.check()
    on = request.placement
    assert on is not None and on.place is not None
    where = _where(on, is_whole=not request.is_later_trial)
    if where.head is not None:
        ray_jobs.version(where.head)
    # The nodes have an interpreter of their own.
    plan = plan_run(msgspec.structs.replace(request, python=None, env=None), interrupts)
    if plan.spec.init is not None and plan.old is None:
        spec = msgspec.structs.replace(plan.spec, init=where.inside(Path(plan.spec.init)))
        plan = msgspec.structs.replace(plan, spec=spec)
    # If flatout itself places ranks, no two get the same GPU.
    if where.is_gpu_shared and on.num_ranks != 1 and plan.device != "cpu":
        raise UsageError(
            "ranks-share-a-gpu",
            "workers of this cluster share a GPU, and Ray could place two ranks on it.",
            because="NCCL, which carries gradients between GPUs, refuses two ranks on one of them",
            fix="use --on cluster:1; or train on the CPUs: --device cpu",
        )
    # Checked before the run is created.
    where.inside(plan.old.path if plan.old else paths.runs_folder())
    if where.now is not None:
        rank_assignment.ranks_of(
            rank_assignment.computing_nodes(where.now), on.num_ranks, plan.device
        )
    machine = runs_api.probe(sys.executable)
    with run_for(plan, machine, interrupts) as folder:
        end = run_tail.RunTail(folder, is_from_end=True)
        worker = _start(where, folder, on, plan.device, plan.change)
    # Later the nodes are queried again, since some may be gone.
    later = msgspec.structs.replace(where, now=None)
    return Supervisor(
        folder=folder, machine=machine, worker=worker, tail=end, change=plan.change,
        start=partial(_start, later, folder, on, plan.device), are_ranks=True,
        is_new=plan.old is None,
    )  # fmt: skip


def _where(on: Placement, *, is_whole: bool = True, system: System | None = None) -> ClusterTarget:
    """The place of a training, from `--on`, if it is possible there.

    is_whole: all nodes of a cluster must be well; else those that are left will do.

    Raises:
        UsageError: no-cluster-here, and what is wrong with its nodes.
    """
    if on.place != CLUSTER:
        address = ray_jobs.check_address(on.place or "")
        own = _own_cluster(address)
        token = ray_token(own) if own is not None else ray_jobs.own_token()
        return ClusterTarget(head=RayHead(address=address, token=token), folder=own)
    folder = open_folder(None)
    now = require_well(folder, system, is_whole=is_whole)
    if engine_in(folder.settings) == "ray":
        is_shared = rank_assignment.is_gpu_shared(now)
        return ClusterTarget(head=ray_head(folder), folder=folder, is_gpu_shared=is_shared)
    return ClusterTarget(folder=folder, now=now)


def _own_cluster(address: str) -> Folder | None:
    """The cluster whose folder is here, if the address is that of its dashboard."""
    try:
        folder = open_folder(None)
        own = address_in(folder.settings, "CLUSTER_DASHBOARD_PORT")
    except UsageError:
        return None
    same = address.replace("//localhost:", "//127.0.0.1:")
    return folder if same == f"http://{own}" else None


def _hand_over(where: ClusterTarget, folder: RunFolder) -> None:
    with atomic_files.mapped_os_errors(folder.log):
        folder.log.touch()
    if where.folder is not None:
        cluster_folder.hand_over(folder.path, *where.folder.owner)


def _start(
    where: ClusterTarget, folder: RunFolder, on: Placement, device: str, change: Change
) -> Running:
    """Starts a training, or starts it again with the nodes that are left.

    Raises:
        UsageError: ranks-do-not-fit; RunFailed: ray-not-answering, docker-failed.
    """
    # Files that root creates here are written by another user in the containers.
    _hand_over(where, folder)
    inside = where.inside(folder.path)
    if where.head is not None:
        return _submit(where.head, inside, folder, on, change)
    assert where.folder is not None
    nodes = rank_assignment.computing_nodes(where.now or state(where.folder))
    placed = rank_assignment.ranks_of(nodes, on.num_ranks, device)
    return NodeJob(rank_assignment.parts(placed, inside, change), inside, folder)


def _submit(
    head: RayHead, inside: str, folder: RunFolder, on: Placement, change: Change
) -> ray_jobs.RayJob:
    # Ray sets the threads of its own processes, not those of ranks; a limit holds for these, too.
    own = [f"{name}={value}" for name, value in process_env.ranks_limit().items()]
    options = ("--on", str(on), "--flatout", __version__)
    launch = worker_command("python3", "flatout.engine.launch", inside, *options, change=change)
    command = ["env", "-u", "OMP_NUM_THREADS", *own, *launch]
    return ray_jobs.submit(head, command, f"{inside}/{folder.log.name}", folder.log)
