"""Training over a cluster: the run's folder lies where both sides see it, and a job of Ray trains.

Ray only places ranks and carries the job; the command line makes the run, follows it, and starts it
again where that is to be.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import msgspec

from flatout import flow
from flatout.cluster.settings import address_in, engine_in
from flatout.clustering.files import Folder, open_folder
from flatout.clustering.running import require_well
from flatout.errors import UsageError
from flatout.nouns.change import Change
from flatout.nouns.placement import CLUSTER, Placement
from flatout.nouns.run import RunHeader
from flatout.nouns.train_request import TrainRequest
from flatout.system import cluster_folder, ray_jobs, store, tail
from flatout.system.attendance import Attendance
from flatout.system.interrupts import Interrupts
from flatout.system.runs import RunFolder

# Where the image of a cluster has the folder of runs.
_RUNS_INSIDE = "/flatout/runs"


class Where(msgspec.Struct, frozen=True, kw_only=True):
    """A Ray that trains. folder: of the cluster of containers that it is, or None."""

    address: str
    folder: Folder | None = None

    def inside(self, path: Path) -> str:
        """A path as the nodes see it; without containers all machines see the same.

        Raises:
            UsageError: run-not-shared.
        """
        if self.folder is None:
            return str(path)
        shared = (self.folder.path / self.folder.settings.get("CLUSTER_RUNS", "")).resolve()
        try:
            return f"{_RUNS_INSIDE}/{path.resolve().relative_to(shared).as_posix()}"
        except ValueError as error:
            raise UsageError(
                "run-not-shared",
                f"{path} is not seen by the nodes of the cluster.",
                because=f"they see {shared}, as CLUSTER_RUNS in .env says",
                fix="flatout cluster init writes the folder of runs that is used here",
            ) from error


def begin(request: TrainRequest, interrupts: Interrupts, *, is_attached: bool = True) -> Attendance:
    """Makes a new run, or takes up an old one, and hands it to a cluster.

    Args:
        request: what was asked for; its placement names the cluster.
        interrupts: Ctrl-C.
        is_attached: a job goes on by itself in any case, and is asked to stop by a file.

    Raises:
        UsageError: no-cluster-here, ray-version-mismatch and what else `judge_nodes` refuses;
            RunFailed: ray-not-answering; KeyboardInterrupt: Ctrl-C was pressed before.
    """
    request.check()
    on = request.placement
    assert on is not None and on.place is not None
    where = _where(on)
    ray_jobs.version(where.address)
    old = flow.reopen(request, interrupts) if request.resume else None
    header = store.read_json(old.header, RunHeader) if old else None
    spec = header.spec if header else flow.specify(request)
    if spec.init is not None and old is None:
        spec = msgspec.structs.replace(spec, init=where.inside(Path(spec.init)))
    machine = flow.probe(sys.executable)
    interrupts.give_way()
    folder = old or flow.prepare(spec, machine, request.run_id)
    # What root makes here is written by another in the containers.
    _hand_over(where, folder)
    end = tail.Tail(folder, is_from_end=True)
    start = partial(_submit, where, folder, on)
    change = request.change if old else Change()
    return Attendance(
        folder=folder, machine=machine, worker=start(change), tail=end, on=on, start=start
    )


def _where(on: Placement) -> Where:
    """The Ray that `--on` names.

    Raises:
        UsageError: no-cluster-here, cluster-without-ray, and what is wrong with its nodes.
    """
    if on.place != CLUSTER:
        address = ray_jobs.check_address(on.place or "")
        return Where(address=address, folder=_own_cluster(address))
    folder = open_folder(None)
    engine = engine_in(folder.settings)
    if engine != "ray":
        raise UsageError(
            "cluster-without-ray",
            f"the cluster in {folder.path} is one of {engine}.",
            because="--on cluster hands the training to Ray's Jobs API",
            fix="flatout cluster init --engine ray",
        )
    require_well(folder)
    address = f"http://{address_in(folder.settings, 'CLUSTER_DASHBOARD_PORT')}"
    return Where(address=address, folder=folder)


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
        uid, gid = (int(where.folder.settings.get(f"CLUSTER_{one}ID", "1000")) for one in "UG")
        cluster_folder.hand_over(folder.path, uid, gid)


def _submit(where: Where, folder: RunFolder, on: Placement, change: Change) -> ray_jobs.RayJob:
    inside = where.inside(folder.path)
    command = ["python3", "-P", "-m", "flatout.engine.launch", inside, "--on", str(on)]
    if change != Change():
        command += ["--change", msgspec.json.encode(change).decode()]
    return ray_jobs.submit(where.address, command, f"{inside}/{folder.log.name}", folder.log)
