"""Trainings and scripts in containers, by a Docker that runs their programs on this machine."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from support.busy_machine import wait_until

from flatout import __version__
from flatout.cluster import node_end, rank_assignment
from flatout.cluster.model.cluster import SHARED_GPU, ClusterState, Container, NodeReport
from flatout.cluster.node_job import NodeJob, NodePart
from flatout.errors import UsageError
from flatout.schema.change import Change
from flatout.schema.placement import RANK_DIED
from flatout.system.store import shutdown_grace
from flatout.system.store.run_folder import RunFolder

ROOT = Path(__file__).resolve().parents[2]
FAKE = ROOT / "tests" / "cases" / "cluster" / "fake_docker.py"
SETTINGS = (
    "COMPOSE_PROJECT_NAME=flatout-lab\nCLUSTER_ENGINE={engine}\nCLUSTER_RUNS={runs}\n"
    "CLUSTER_DATA=data\n"
)
SLEEP = "import sys, time; print(sys.argv[1], flush=True); time.sleep(600)"

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="its shell is sh")


def report(**more: Any) -> NodeReport:
    sound = NodeReport(
        node="NODE", python="3.12.3", versions={"flatout": __version__, "torch": "2.13.0"},
        shared_bytes=2**30, interfaces=("lo", "eth0"), num_cpus=2.0, free_ports=(4001, 4002),
    )  # fmt: skip
    return msgspec.structs.replace(sound, **more)


@pytest.fixture
def docker(tmp_path: Path, fake_python: str) -> dict[str, str]:
    """Variables with which a process finds a Docker that runs what it is given on this machine."""
    programs = tmp_path / "programs"
    programs.mkdir(exist_ok=True)
    program = programs / "docker"
    program.write_text(f"#!{sys.executable} -P\nimport runpy\nrunpy.run_path({str(FAKE)!r})\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "FAKE_RUNS": str(tmp_path / "state" / "runs"),
        "FAKE_PYTHON": fake_python,
        "FAKE_SOURCE": str(ROOT / "src"),
        "FAKE_LOST": str(tmp_path / "lost"),
        "FAKE_CALLS": str(tmp_path / "calls"),
        "FAKE_REPORT": msgspec.json.encode(report()).decode(),
    }


@pytest.fixture
def cluster(cli: Any, docker: dict[str, str]) -> dict[str, str]:
    """A cluster of torchrun in the folder of the command line, and how its Docker is found."""
    made = cli.folder / "cluster"
    made.mkdir()
    (made / "compose.yaml").touch()
    (made / ".env").write_text(SETTINGS.format(engine="torchrun", runs=cli.runs))
    return docker


def calls(docker: dict[str, str]) -> list[list[str]]:
    """What Docker was asked for."""
    return [json.loads(line) for line in Path(docker["FAKE_CALLS"]).read_text().splitlines()]


def launches(docker: dict[str, str]) -> list[list[str]]:
    """What was started in the nodes."""
    return [words for words in calls(docker) if "flatout.engine.launch" in words]


def test_train_in_the_nodes_tells_the_same_as_here(cli: Any, cluster: dict[str, str]) -> None:
    # Of GPUs there would be two; they are not asked for.
    cluster["FAKE_REPORT"] = msgspec.json.encode(report(num_gpus=1)).decode()
    words = ("--on", "cluster:3", "--device", "cpu", "--json")
    done = cli.run("train", cli.experiment, *words, **cluster)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["run"]["status"] == "finished"
    first, second = sorted(launches(cluster), key=lambda words: words[words.index("--node") + 1])
    # Three ranks over two workers, which meet at the first; the head computes nothing.
    assert first[first.index("--on") :][:2] == ["--on", "torchrun:2"]
    assert second[second.index("--on") :][:2] == ["--on", "torchrun:1"]
    assert all(one[one.index("--meet") + 1] == "172.20.0.3:4001" for one in (first, second))
    assert "OMP_NUM_THREADS=1" in first and "OMP_NUM_THREADS=2" in second
    # The head and two workers, each asked about itself once.
    assert sum("flatout.cluster.compose.node_report" in words for words in calls(cluster)) == 3


def test_a_training_goes_on_when_the_command_line_is_killed(
    cli: Any, cluster: dict[str, str]
) -> None:
    slow = ["-s", "steps=4000", "-s", "pause=0.02"]
    process = cli.start("train", cli.experiment, "--on", "cluster", *slow, **cluster)
    metrics = cli.runs / "mine-0001" / "metrics.jsonl"
    wait_until(lambda: metrics.exists() and '"step": 3' in metrics.read_text())
    process.kill()
    process.communicate()
    before = metrics.stat().st_size
    wait_until(lambda: metrics.stat().st_size > before)
    # And it is stopped by the run's folder, as any other.
    assert cli.run("runs", "stop", "mine-0001").returncode == 0
    # An epoch has two steps.
    trained = max(json.loads(line)["step"] for line in metrics.read_text().splitlines())
    epochs = str(trained // 2 + 5)
    again = cli.run("train", "--resume", "last", "--on", "cluster", "--epochs", epochs, **cluster)
    assert again.returncode == 0, again.stderr
    assert "--change" in launches(cluster)[-1]


def test_a_lost_node_is_left_out_of_the_next_start(cli: Any, cluster: dict[str, str]) -> None:
    hold = cli.folder / "hold"
    hold.touch()
    words = ["-s", "mode=die", "-s", f"hold={hold}"]
    process = cli.start("train", cli.experiment, "--on", "cluster", "--json", *words, **cluster)
    folder = cli.runs / "mine-0001"
    metrics = folder / "metrics.jsonl"
    wait_until(lambda: metrics.exists() and '"step": 3' in metrics.read_text())
    Path(cluster["FAKE_LOST"]).write_text("/flatout-lab_worker_2")
    hold.unlink()
    stdout, stderr = process.communicate(timeout=120)
    # The fake rank dies again each time: three starts again, none of them on the lost node.
    assert process.returncode == 1, stdout
    assert "worker-died" in stderr
    on = [words[words.index("--nodes") + 1] for words in launches(cluster)]
    assert on == ["2", "2", "1", "1", "1"]


def test_what_a_cluster_cannot_take_is_refused_before_there_is_a_run(
    cli: Any, cluster: dict[str, str]
) -> None:
    done = cli.run("train", cli.experiment, "--on", "cluster:5", **cluster)
    assert done.returncode == 2 and "explain ranks-do-not-fit" in done.stderr
    assert "each needs one CPU, and the nodes have 4" in done.stderr
    assert not cli.runs.exists() or not any(cli.runs.iterdir())


def test_a_run_that_nodes_would_not_see_is_not_made(cli: Any, cluster: dict[str, str]) -> None:
    away = {"CLUSTER_RUNS": str(cli.folder / "away")}
    done = cli.run("train", cli.experiment, "--on", "cluster", **cluster, **away)
    assert done.returncode == 2 and "explain run-not-shared" in done.stderr, done.stderr
    assert not cli.runs.exists() or not any(cli.runs.iterdir())


def test_scale_looks_first_and_remembers_what_works(cli: Any, cluster: dict[str, str]) -> None:
    config = json.loads(FAKE.with_name("config-v2.json").read_text())
    # This machine has no GPU.
    del config["services"]["gpu-0"]
    config["services"]["head"]["ports"] = []
    given = cli.folder / "config.json"
    given.write_text(json.dumps(config))
    settings = cli.folder / "cluster" / ".env"
    before = settings.read_text()
    words = ("cluster", "scale", "500", "--json")
    done = cli.run(*words, **cluster, FAKE_CONFIG=str(given), FAKE_FAILS="up")
    assert done.returncode == 1 and "no space left" in done.stderr, done.stderr
    # Told before it was tried.
    assert done.stderr.index("cluster-does-not-fit") < done.stderr.index("no space left")
    assert settings.read_text() == before
    done = cli.run(*words, **cluster, FAKE_CONFIG=str(given))
    assert "CLUSTER_WORKERS=500" in settings.read_text(), done.stderr


SCRIPT = """
import os, sys, time
from pathlib import Path
rank, place = os.environ["RANK"], os.environ["MASTER_ADDR"]
print(f"I am {rank} of {os.environ['WORLD_SIZE']}, {place}, {sys.argv[1:]}", flush=True)
if "fail" in sys.argv and rank == "1":
    while not Path(sys.argv[1], "0").exists():
        time.sleep(0.05)
    sys.exit("no such batch")
if len(sys.argv) > 1:
    Path(sys.argv[1], rank).write_text(str(os.getpid()))
    time.sleep(600)
"""
LAUNCH = ("launch", "--framework", "torch", "--nodes", "2", "--on", "cluster")


def test_a_script_runs_in_the_nodes(cli: Any, cluster: dict[str, str]) -> None:
    (cli.folder / "train.py").write_text(SCRIPT)
    done = cli.run(*LAUNCH, "--env", "mine", "train.py", **cluster)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        "node 0  I am 0 of 2, 172.20.0.3, []", "node 1  I am 1 of 2, 172.20.0.3, []",
    ]  # fmt: skip
    assert "2 nodes · on worker-1, worker-2" in done.stderr
    assert "option-without-effect" in done.stderr
    more = cli.run(*LAUNCH[:4], "3", *LAUNCH[5:], "train.py", **cluster)
    assert more.returncode == 2 and "flatout cluster scale 3" in more.stderr


def test_shards_are_not_asked_of_a_head_that_is_gone(cli: Any, cluster: dict[str, str]) -> None:
    settings = cli.folder / "cluster" / ".env"
    settings.write_text(settings.read_text().replace("torchrun", "dask"))
    data = cli.folder / "cluster" / "data"
    data.mkdir()
    versions = {"flatout": __version__, "torch": "2.13.0", "dask": "1", "distributed": "1"}
    cluster["FAKE_REPORT"] = msgspec.json.encode(
        report(versions=versions, reached={"scheduler:8786": True})
    ).decode()
    # The recorded containers have no scheduler.
    words = ("ingest", str(data), str(data / "shards"), "--on", "cluster")
    done = cli.run(*words, **cluster)
    assert done.returncode == 2 and "explain cluster-not-up" in done.stderr, done.stderr
    assert "its `scheduler` container" in done.stderr


def test_a_script_ends_everywhere_when_one_node_fails(cli: Any, cluster: dict[str, str]) -> None:
    (cli.folder / "train.py").write_text(SCRIPT)
    done = cli.run(*LAUNCH, "train.py", str(cli.folder), "fail", **cluster)
    assert done.returncode == 1
    assert "node 1 ended with exit code 1" in done.stderr and "no such batch" in done.stderr
    wait_until(lambda: not psutil.pid_exists(int((cli.folder / "0").read_text())))


def test_a_script_ends_with_the_command_that_has_started_it(
    cli: Any, cluster: dict[str, str]
) -> None:
    (cli.folder / "train.py").write_text(SCRIPT)
    process = cli.start(*LAUNCH, "train.py", str(cli.folder), **cluster)
    reported = [cli.folder / rank for rank in ("0", "1")]
    wait_until(lambda: all(one.exists() and one.read_text() for one in reported))
    process.kill()
    process.communicate()
    wait_until(lambda: not any(psutil.pid_exists(int(one.read_text())) for one in reported))


def job(docker: dict[str, str], folder: Path, *programs: str) -> NodeJob:
    """Nodes that run these programs with the run's folder as their first word."""
    ids = [one["Id"] for one in json.loads(FAKE.with_name("inspect.json").read_text())]
    inside = f"/flatout/runs/{folder.name}"
    words = [("python3", "-c", text, inside, "flatout.engine.launcher") for text in programs]
    parts = [NodePart(container=id, command=one) for id, one in zip(ids, words, strict=False)]
    return NodeJob(parts, inside, RunFolder(folder))


@pytest.fixture
def run(docker: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run's folder that the nodes see."""
    for name, value in docker.items():
        monkeypatch.setenv(name, value)
    folder = Path(docker["FAKE_RUNS"]) / "one"
    folder.mkdir(parents=True)
    return folder


def test_a_job_is_killed_in_all_nodes(docker: dict[str, str], run: Path) -> None:
    made = job(docker, run, SLEEP, SLEEP)
    wait_until(lambda: (run / "worker.log").read_text().count(str(run)) == 2)
    assert made.is_running() and made.exit_code() is None
    made.kill()
    assert not made.is_running() and made.exit_code() == RANK_DIED
    assert node_end.end_all(str(run)) == 0


def test_nodes_end_when_one_of_them_has_failed(
    docker: dict[str, str], run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutdown_grace, "_GRACE_S", 0.3)
    made = job(docker, run, SLEEP, "import sys; sys.exit(10)")
    wait_until(lambda: not made.is_running())
    assert made.exit_code() == RANK_DIED
    reported = job(docker, run, "import sys; sys.exit(2)", "import sys; sys.exit(10)")
    wait_until(lambda: not reported.is_running())
    assert reported.exit_code() == 2


def test_end_leaves_other_runs_alone(tmp_path: Path) -> None:
    def start(folder: str) -> subprocess.Popen[bytes]:
        text = "import time; time.sleep(600)"
        words = [sys.executable, "-c", text, "flatout.engine.training.worker", folder]
        return subprocess.Popen(words, start_new_session=True)

    mine, other = start(str(tmp_path / "one")), start(str(tmp_path / "one-more"))
    try:
        wait_until(lambda: str(tmp_path / "one") in psutil.Process(mine.pid).cmdline())
        assert node_end.end_all(str(tmp_path / "one")) == 1
        assert mine.wait(120) == -signal.SIGKILL and other.poll() is None
    finally:
        mine.kill()
        other.kill()
        other.wait()


def node(name: str, **more: Any) -> rank_assignment.RankNode:
    container = Container(id=name, name=name, service=name, number=1, state="running")
    return rank_assignment.RankNode(container=container, report=report(**more))


def test_ranks_are_spread_over_nodes() -> None:
    def counts(
        nodes: list[rank_assignment.RankNode], num_ranks: int, device: str = "auto"
    ) -> dict[str, int]:
        placed = rank_assignment.ranks_of(nodes, num_ranks, device)
        return {one.name: count for one, count in placed}

    both = [node("a"), node("b")]
    assert counts(both, 0) == {"a-1": 1, "b-1": 1}
    assert counts(both, 3) == {"a-1": 2, "b-1": 1}
    assert counts(both, 1) == {"a-1": 1}
    # Under WSL a container sees all GPUs, and has one.
    mixed = [node("a"), node("b", num_gpus=2)]
    assert counts(mixed, 0) == {"b-1": 1}
    assert counts(mixed, 0, "cpu") == {"a-1": 1, "b-1": 1}
    assert counts(mixed, 3, "cpu") == {"a-1": 2, "b-1": 1}
    with pytest.raises(UsageError, match="too few GPUs for 2 ranks") as reported:
        rank_assignment.ranks_of(mixed, 2, "auto")
    assert "each needs one GPU, and the nodes have 1" in str(reported.value)
    assert "--device cpu" in str(reported.value)


def test_of_nodes_that_share_a_gpu_one_has_a_rank() -> None:
    """NCCL refuses two ranks on one GPU."""

    def shared(name: str, gpu: str) -> rank_assignment.RankNode:
        return node(name, num_gpus=1, variables={SHARED_GPU: gpu})

    nodes = [shared("a", "0"), shared("b", "0"), shared("c", "1"), node("d", num_gpus=1)]
    assert [one.name for one, _ in rank_assignment.ranks_of(nodes, 0, "auto")] == [
        "a-1",
        "c-1",
        "d-1",
    ]
    with pytest.raises(UsageError, match="too few GPUs for 4 ranks"):
        rank_assignment.ranks_of(nodes, 4, "cuda")
    assert len(rank_assignment.ranks_of(nodes, 0, "cpu")) == 4


def test_workers_share_a_gpu_and_the_head_does_not_count() -> None:
    def one(name: str, gpu: str) -> NodeReport:
        return report(node=name, num_gpus=1, variables={SHARED_GPU: gpu})

    def now(*nodes: NodeReport) -> ClusterState:
        return ClusterState(name="lab", folder="", engine="ray", containers=(), nodes=nodes)

    assert rank_assignment.is_gpu_shared(
        now(one("head-1", "0"), one("gpu-0-1", "0"), one("gpu-0-2-1", "0"))
    )
    assert not rank_assignment.is_gpu_shared(
        now(one("head-1", "0"), one("gpu-0-1", "0"), one("gpu-1-1", "1"))
    )


def test_variables_of_a_node_hold() -> None:
    (part,) = rank_assignment.parts(
        [(node("a", variables={"OMP_NUM_THREADS": "5"}), 1)], "/r", Change()
    )
    assert part.variables == {}, "what compose.yaml says holds"
