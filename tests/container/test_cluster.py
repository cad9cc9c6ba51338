"""Clusters of real containers: they come up from an image built here, train, and lose a worker."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from containers import Docker

ROOT = Path(__file__).resolve().parents[2]
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
# An image takes minutes where nothing of it is there yet; the next run finds its layers.
BUILD_LIMIT_S = 1800
WHEEL_LIMIT_S = 600


class Cluster:
    """A cluster in a folder, by the command line of this checkout."""

    def __init__(self, folder: Path, engine: str) -> None:
        self.folder = folder
        self.engine = engine
        self.state = folder / "state"
        self.project = f"flatout-test-{engine}"

    def flatout(self, *words: str, limit_s: float = 300) -> subprocess.CompletedProcess[str]:
        """Runs the command line in the folder above the cluster's."""
        return subprocess.run(
            [sys.executable, "-m", "flatout", *words], cwd=self.folder, timeout=limit_s,
            env=self.environment(), capture_output=True, text=True, check=False,
        )  # fmt: skip

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Starts the command line."""
        return subprocess.Popen(
            [sys.executable, "-m", "flatout", *words], cwd=self.folder, env=self.environment(),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def environment(self) -> dict[str, str]:
        """What the command line sees."""
        own = {"PYTHONPATH": str(ROOT / "src"), "FLATOUT_STATE": str(self.state)}
        return {**os.environ, **own}

    def told(self, *words: str, limit_s: float = 300) -> Any:
        """What a command that goes well tells as JSON."""
        done = self.flatout(*words, "--json", limit_s=limit_s)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"[-4000:]
        return json.loads(done.stdout)

    def make(self, base_image: str) -> None:
        """Writes the files, for an image that can be built on this machine, and starts all."""
        version = metadata.version("torch").partition("+")[0]
        self.told("cluster", "init", "--engine", self.engine, "--gpus", "none",
                  "--base-image", base_image, "--with", f"torch=={version}+cpu")  # fmt: skip
        place = self.folder / "cluster"
        changes = {
            "COMPOSE_PROJECT_NAME": self.project,
            "CLUSTER_SYSTEM_PACKAGES": "",
            "CLUSTER_BUILD_NETWORK": "host",
            "CLUSTER_WORKER_MEMORY": "2560m",
            "CLUSTER_SHARED_MEMORY": "512m",
            "CLUSTER_OBJECT_STORE_BYTES": str(400 * 2**20),
        }
        if CERTIFICATES.exists():
            shutil.copy(CERTIFICATES, place / "certificates" / "ca.pem")
            changes["CLUSTER_CA_BUNDLE"] = "ca.pem"
        settings = place / ".env"
        lines = settings.read_text().splitlines()
        kept = [line for line in lines if line.partition("=")[0] not in changes]
        own = [f"{name}={value}" for name, value in changes.items()]
        settings.write_text("\n".join([*kept, *own]) + "\n")
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest",
             str(place / "wheels"), f"torch=={version}+cpu"], timeout=WHEEL_LIMIT_S, check=True,
        )  # fmt: skip
        self.told("cluster", "up", "--limit", "300", limit_s=BUILD_LIMIT_S)


def _cluster(engine: str, folder: Path, docker: Docker, base_image: str) -> Iterator[Cluster]:
    has_v1 = shutil.which("docker-compose") is not None
    if not has_v1 and docker.ask("compose", "version").returncode != 0:
        pytest.skip("needs Docker Compose, v2 or v1")
    if find_spec("torch") is None:
        pytest.skip("needs torch: its version goes into the image")
    made = Cluster(folder, engine)
    try:
        made.make(base_image)
        yield made
    finally:
        made.flatout("cluster", "down", "--volumes")


@pytest.fixture(scope="module")
def ray(
    tmp_path_factory: pytest.TempPathFactory, docker: Docker, base_image: str
) -> Iterator[Cluster]:
    """Three containers of Ray."""
    yield from _cluster("ray", tmp_path_factory.mktemp("ray"), docker, base_image)


@pytest.fixture(scope="module")
def dask(
    tmp_path_factory: pytest.TempPathFactory, docker: Docker, base_image: str
) -> Iterator[Cluster]:
    """Three containers of Dask."""
    yield from _cluster("dask", tmp_path_factory.mktemp("dask"), docker, base_image)


def _assert_sound(cluster: Cluster) -> dict[str, Any]:
    state = cluster.told("cluster", "status")
    assert len(state["containers"]) == len(state["nodes"]) == 3
    assert state["findings"] == [] and state["unread"] == {}
    assert all(one["health"] == "healthy" for one in state["containers"])
    assert not any(one["is_root"] for one in state["nodes"])
    ports = [port for one in state["containers"] for port in one["ports"]]
    assert ports and all(port["address"] == "127.0.0.1" for port in ports)
    assert isinstance(state, dict)
    return state


def test_ray_comes_up_and_trains_as_one_process_does(ray: Cluster) -> None:
    state = _assert_sound(ray)
    assert state["dashboards"][0]["address"] == "http://127.0.0.1:8265"
    asked = ("train", "digits", "--epochs", "5", "--seed", "3", "--tune", "off")
    alone = ray.told(*asked)["run"]
    both = ray.told(*asked, "--on", "cluster:2")["run"]
    assert both["status"] == "finished" and both["started"]["num_ranks"] == 2
    # The same samples in the same order; sums over ranks round otherwise.
    accuracy = [one["validations"][-1]["metrics"]["accuracy"] for one in (alone, both)]
    assert abs(accuracy[0] - accuracy[1]) < 0.01
    assert (Path(both["folder"]) / "worker.rank1.log").exists()


def test_ray_goes_on_without_a_worker_that_was_killed(ray: Cluster, docker: Docker) -> None:
    process = ray.start("train", "digits", "--epochs", "150", "--tune", "off", "--on", "cluster",
                        "--name", "bereft", "--json")  # fmt: skip
    folder = ray.state / "runs" / "bereft"
    _wait_for(folder / "events.jsonl", '"checkpointed"', process)
    (worker,) = [one for one in ray.told("cluster", "status")["containers"]
                 if (one["service"], one["number"]) == ("worker", 2)]  # fmt: skip
    docker.must("kill", worker["name"])
    stdout, stderr = process.communicate(timeout=420)
    run = json.loads(stdout)["run"]
    assert run["status"] == "finished", stderr[-3000:]
    assert run["started"]["resumed"] and run["started"]["num_ranks"] == 1
    # Every epoch once: nothing was lost, nothing done twice.
    metrics = (folder / "metrics.jsonl").read_text().splitlines()
    epochs = [json.loads(line)["epoch"] for line in metrics if '"epochended"' in line]
    assert epochs == list(range(150))
    assert ray.told("cluster", "up", "--limit", "300", limit_s=BUILD_LIMIT_S)["findings"] == []


def test_ray_job_stops_with_a_checkpoint_and_goes_on(ray: Cluster) -> None:
    words = ("--epochs", "150", "--tune", "off", "--on", "cluster:2")
    process = ray.start("train", "digits", "--name", "halted", *words)
    _wait_for(ray.state / "runs" / "halted" / "metrics.jsonl", '"validated"', process)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)
    run = ray.told("show", "halted")["run"]
    assert run["status"] == "stopped" and run["checkpoint_step"] == run["step"]
    again = ray.told("train", "--resume", "halted", "--on", "cluster:2")["run"]
    assert again["status"] == "finished" and again["started"]["resumed"]


def test_a_cluster_grows_shrinks_and_keeps_its_runs(ray: Cluster) -> None:
    assert len(ray.told("cluster", "scale", "1", "--limit", "300")["containers"]) == 2
    assert len(ray.told("cluster", "scale", "2", "--limit", "300")["containers"]) == 3
    ray.flatout("cluster", "stop")
    assert ray.flatout("cluster", "status").returncode == 1
    kept = ray.told("cluster", "down")
    assert str(ray.state / "runs") in kept["folders"] and kept["volumes"]
    assert ray.told("cluster", "status")["containers"] == []
    assert ray.flatout("train", "digits", "--on", "cluster").returncode == 2


def test_dask_comes_up_and_is_reached_on_loopback(dask: Cluster) -> None:
    state = _assert_sound(dask)
    addresses = [one["address"] for one in state["dashboards"]]
    assert addresses == ["tcp://127.0.0.1:8786", "http://127.0.0.1:8787"]
    program = (
        "from distributed import Client; import os\n"
        "client = Client('127.0.0.1:8786')\n"
        "print(sorted(client.map(lambda x: x * x, range(4)), key=str) and "
        "sum(client.gather(client.map(lambda x: x * x, range(4)))), len(client.nthreads()))"
    )
    # From inside the network by its name; from here where this environment has the same Dask.
    inside = program.replace("127.0.0.1", "scheduler")
    done = subprocess.run(
        ["docker", "run", "--rm", "--network", dask.project, dask.project, "python3", "-c", inside],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.stdout.split() == ["14", "2"], done.stderr
    if find_spec("distributed") and metadata.version("distributed") == state["nodes"][0][
        "versions"]["distributed"]:  # fmt: skip
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True,
                              timeout=120, check=False)  # fmt: skip
        assert done.stdout.split() == ["14", "2"], done.stderr


def _wait_for(path: Path, text: str, process: subprocess.Popen[str], limit_s: float = 180) -> None:
    end = time.monotonic() + limit_s
    while not (path.exists() and text in path.read_text()):
        assert process.poll() is None, process.communicate()[1][-3000:]
        assert time.monotonic() < end, f"no {text} in {path}"
        time.sleep(0.2)
