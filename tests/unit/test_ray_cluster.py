"""Ranks on a Ray, as far as it goes without one: what each takes and is told, who is refused."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.forked_commands import without

from flatout import __version__
from flatout.engine.ingest import executors
from flatout.engine.launch import ray as launch_ray
from flatout.engine.launch import ray_cluster
from flatout.engine.launch.job import Lifeline
from flatout.engine.launch.ray import _attend, own_variables, rank_bundles, refuse_unfit
from flatout.engine.launch.ray_cluster import Bundle, RayCluster, error_line
from flatout.errors import RunFailed, UsageError
from flatout.schema.experiment_spec import ExperimentSpec
from flatout.schema.run import RunHeader
from flatout.schema.run_lines import Event, Failed
from flatout.system import atomic_files
from flatout.system.store import shutdown_grace
from flatout.system.store.run_folder import RunFolder, create_run
from flatout.system.store.shutdown_grace import ShutdownGrace

SRC = Path(__file__).resolve().parents[2] / "src"
# A head that computes nothing, and what may be beside it.
HEAD: Bundle = {"memory": 2e9}
CPUS: Bundle = {"CPU": 2.0}
ONE_GPU: Bundle = {"CPU": 2.0, "GPU": 1.0}
FOUR_GPUS: Bundle = {"CPU": 2.0, "GPU": 4.0}


@pytest.mark.parametrize(
    ("nodes", "wanted", "device", "bundles"),
    [
        ([HEAD, CPUS, CPUS], 0, "auto", [{"CPU": 1.0}] * 2),
        ([HEAD, CPUS, CPUS], 3, "auto", [{"CPU": 1.0}] * 3),
        # All workers are gone: room comes, or the wait for it ends.
        ([HEAD], 0, "auto", []),
        ([HEAD], 2, "cuda", []),
        ([HEAD, ONE_GPU, CPUS], 0, "auto", [{"CPU": 1.0, "GPU": 1.0}]),
        ([HEAD, ONE_GPU, CPUS, CPUS], 3, "cpu", [{"CPU": 1.0}] * 3),
        # Few CPUs are no reason to leave a GPU idle.
        ([FOUR_GPUS], 0, "cuda", [{"CPU": 0.5, "GPU": 1.0}] * 4),
    ],
)
def test_what_each_rank_takes(
    nodes: list[Bundle], wanted: int, device: str, bundles: list[Bundle]
) -> None:
    assert rank_bundles(nodes, wanted, device) == bundles


@pytest.mark.parametrize(
    ("nodes", "wanted", "device", "because", "fix"),
    [
        ([HEAD, CPUS], 3, "auto", "each needs one CPU, and the nodes have 2",
         "use --on with at most 2 ranks"),
        ([ONE_GPU, CPUS, CPUS], 3, "auto", "each needs one GPU, and the nodes have 1",
         "use --on with at most 1 rank; or train on CPUs: --device cpu"),
        ([ONE_GPU], 3, "auto", "each needs one GPU, and the nodes have 1",
         "use --on with at most 1 rank"),
        ([CPUS], 0, "cuda", "each needs one GPU, and the nodes have 0",
         "train on CPUs: --device cpu"),
    ],
)  # fmt: skip
def test_more_ranks_than_room_are_refused_by_what_is_short(
    nodes: list[Bundle], wanted: int, device: str, because: str, fix: str
) -> None:
    with pytest.raises(UsageError) as reported:
        rank_bundles(nodes, wanted, device)
    assert (reported.value.rule, reported.value.because, reported.value.fix) == (
        "ranks-do-not-fit", because, fix,
    )  # fmt: skip


def node(id: str, **more: Any) -> dict[str, Any]:
    return {"id": id, "host": f"host-{id}", "version": __version__, "sees": True,
            "threads": None, **more}  # fmt: skip


def test_threads_are_a_persons_or_a_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("FLATOUT_RANKS_LIMIT_S", "60")
    nodes = [node("a"), node("a"), node("b", threads="3")]

    def reported(rank: int, *, has_gpu: bool = False) -> dict[str, str]:
        return own_variables(
            rank, nodes, {"a": 8, "b": 8}, has_gpu=has_gpu, rendezvous=("host-a", 5000)
        )

    assert [reported(rank)["OMP_NUM_THREADS"] for rank in range(3)] == ["4", "4", "3"]
    assert (reported(1)["LOCAL_RANK"], reported(1)["LOCAL_WORLD_SIZE"]) == ("1", "2")
    # Of GPUs it sees its own alone.
    assert (reported(1, has_gpu=True)["LOCAL_RANK"], reported(1)["RANK"]) == ("0", "1")
    assert reported(0)["FLATOUT_RANKS_LIMIT_S"] == "60"
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert {reported(rank)["OMP_NUM_THREADS"] for rank in range(3)} == {"5"}


def test_nodes_that_would_train_something_else_are_refused() -> None:
    refuse_unfit([node("a"), node("b")], "/runs/mine-0001")
    with pytest.raises(UsageError, match="0.0.1 on host-b") as reported:
        refuse_unfit([node("a"), node("b", version="0.0.1")], "/runs/mine-0001")
    assert reported.value.rule == "cluster-versions-differ"
    with pytest.raises(UsageError, match="/runs/mine-0001 is not visible on host-b") as reported:
        refuse_unfit([node("a"), node("b", sees=False)], "/runs/mine-0001")
    assert reported.value.rule == "run-not-shared"


def fake_ray(has_room: list[bool]) -> tuple[Any, list[list[Bundle]]]:
    """A Ray that has room or not, one answer for each time that it is asked; and what was left."""
    kept: list[list[Bundle]] = []

    def placement_group(bundles: list[Bundle], strategy: str) -> Any:
        assert bundles and strategy == "SPREAD"
        kept.append(bundles)
        return SimpleNamespace(
            wait=lambda limit_s: bool(has_room) and has_room.pop(0), bundles=bundles
        )

    util = SimpleNamespace(
        placement_group=placement_group,
        remove_placement_group=lambda group: kept.remove(group.bundles),
    )
    return SimpleNamespace(util=util), kept


def test_room_is_waited_for_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "_COUNTED_EVERY_S", 0.01)
    ray, kept = fake_ray([False, True])
    # A node comes back, and its room is held by others at first.
    answers = iter([[], [CPUS], [CPUS]])
    assert RayCluster(ray).reserve(lambda: next(answers)) == [CPUS]
    assert kept == [[CPUS]]
    ray, kept = fake_ray([])
    assert RayCluster(ray).reserve(lambda: [CPUS], 0.05) == [] and kept == []
    assert RayCluster(ray).reserve(list, 0.05) == []


def actor(rank: int) -> Any:
    """One whose methods answer with their names."""

    def method(name: str) -> Any:
        return SimpleNamespace(remote=lambda: f"{name} {rank}")

    return SimpleNamespace(wait=method("wait"), end=method("end"))


def test_ranks_that_hang_are_ended_before_ray_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutdown_grace, "_GRACE_WITHOUT_FIRST_S", 0.0)
    awaited: list[list[str]] = []

    def wait(references: list[str], num_returns: int, timeout: float) -> tuple[list[str], Any]:
        awaited.append(references)
        return [one for one in references if one == "wait 0"], None

    ray: Any = SimpleNamespace(wait=wait, get=lambda references, timeout: [1])
    job: Any = SimpleNamespace(lifeline=Lifeline(is_attached=False))
    codes = _attend(
        job, RayCluster(ray), [actor(rank) for rank in range(3)], ShutdownGrace(RunFolder(tmp_path))
    )
    assert codes == {0: 1, 1: -9, 2: -9}
    assert awaited[-1] == ["end 1", "end 2"]


class AnyRay:
    """A Ray that does at once whatever it is given. where: the addresses it was joined at."""

    exceptions = SimpleNamespace(RayError=RuntimeError)

    def __init__(self) -> None:
        self.where: list[str] = []
        self.num_left = 0

    def init(self, address: str, **settings: Any) -> None:
        assert settings["log_to_driver"] is False
        self.where.append(address)

    def shutdown(self) -> None:
        self.num_left += 1

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 2.0}

    def put(self, value: Any) -> Any:
        return value

    def remote(self, num_cpus: int) -> Any:
        return lambda task: SimpleNamespace(remote=partial(partial, task))

    def wait(self, waiting: list[Any]) -> tuple[list[Any], list[Any]]:
        return waiting[:1], waiting[1:]

    def get(self, call: Any) -> Any:
        return call()


def test_ingestion_joins_ray_like_everybody_and_leaves_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = AnyRay()
    monkeypatch.setattr(ray_cluster, "ray_module", lambda: ray)
    monkeypatch.setattr(executors, "carry_out", lambda job, piece: (job, piece))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    work: Any = ("job", ["a", "b"])

    def carried_out(address: str | None) -> list[Any]:
        return list(executors.carry_out_all(*work, "ray", 2, address))

    with socket.create_server(("127.0.0.1", 0)) as head:
        place = f"127.0.0.1:{head.getsockname()[1]}"
        assert carried_out(place) == [("job", "a"), ("job", "b")]
        # By itself it begins a Ray of its own, and joins none that happens to run here.
        assert len(carried_out(None)) == 2
        monkeypatch.setenv("RAY_ADDRESS", place)
        carried_out(None)
    assert ray.where == [place, "local", place] and ray.num_left == 3
    with pytest.raises(RunFailed, match=f"Ray does not answer at {place}") as reported:
        carried_out(None)
    assert reported.value.rule == "scheduler-not-reachable" and len(ray.where) == 3


def test_a_ray_that_refuses_is_not_reported_as_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: Any) -> None:
        raise RuntimeError("Version mismatch: the cluster was started with Python 3.12")

    ray = AnyRay()
    monkeypatch.setattr(ray, "init", refuse)
    monkeypatch.setattr(ray_cluster, "ray_module", lambda: ray)
    with socket.create_server(("127.0.0.1", 0)) as head:
        place = f"127.0.0.1:{head.getsockname()[1]}"
        with pytest.raises(RunFailed, match=f"cannot connect to Ray at {place}") as reported:
            ray_cluster.join(place)
    assert "Version mismatch" in (reported.value.because or "")


@pytest.mark.skipif(sys.platform == "win32", reason="nothing can be handed on there")
@pytest.mark.parametrize("host", ["127.0.0.1", "192.0.2.1"])
def test_a_rank_of_rays_is_given_the_port_that_was_found_for_it(
    host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    util = SimpleNamespace(get_node_ip_address=lambda: host)
    monkeypatch.setattr(launch_ray, "ray_module", lambda: SimpleNamespace(util=util))
    rank = launch_ray.Rank()
    place = rank.rendezvous_address()
    is_own = host == "127.0.0.1"
    assert place[0] == host
    if is_own:
        with pytest.raises(OSError, match="in use"):
            socket.create_server(place)
    listens = (
        "import os, socket; from flatout.engine.ranks.listen_socket import listening_socket\n"
        "number = listening_socket('127.0.0.1', 0)\n"
        "print(socket.socket(fileno=number).getsockname())"
    )
    rank.start([sys.executable, "-c", listens], {"PYTHONPATH": str(SRC)}, str(tmp_path))
    assert rank.wait() == 0
    reported = (tmp_path / "worker.log").read_text()
    assert (str(place) == reported.strip()) == is_own, reported
    # It has been let go here, so that it is free once the rank has ended.
    if is_own:
        socket.create_server(place).close()


def test_what_ray_says_is_one_line() -> None:
    text = "ray::Rank.node() (pid=7)\n  File ...\nModuleNotFoundError: No module named 'flatout'\n"
    assert error_line(RuntimeError(text)) == "ModuleNotFoundError: No module named 'flatout'"
    assert error_line(RuntimeError("The actor died.\nclass_name: Rank")) == "The actor died."
    assert error_line(TimeoutError()) == "TimeoutError"


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (("--on", "ray:2"), "ray-not-installed"),
        (("--on", "local:1", "--flatout", "0.0.1"), "cluster-versions-differ"),
    ],
)
def test_a_launcher_that_cannot_start_says_why_in_the_run(
    words: tuple[str, ...], rule: str, tmp_path: Path
) -> None:
    header = RunHeader(
        id="mine-0001", created_at=0.0, flatout_version=__version__, python="",
        spec=ExperimentSpec(name="mine"),
    )  # fmt: skip
    folder: RunFolder = create_run(header, tmp_path)
    launch = f"import runpy, sys; {without(['ray'])}runpy.run_module('flatout.engine.launch', "
    done = subprocess.run(
        [sys.executable, "-c", launch + "run_name='__main__')", str(folder.path), *words],
        env={**os.environ, "PYTHONPATH": str(SRC)},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    (reported,) = atomic_files.read_lines(folder.events, Event)
    assert isinstance(reported, Failed) and reported.finding.rule == rule
    assert "Traceback" not in done.stderr
