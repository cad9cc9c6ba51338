"""Clusters of real containers: they come up from an image built here, train, and lose a worker."""

from __future__ import annotations

import json
import random
import re
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from containers import Docker
from support.container_cluster import (
    ROOT,
    ContainerCluster,
    cluster_that_runs,
    missing_for_clusters,
    wait_until,
)

# What an example of `flatout launch` prints.
_SAID = re.compile(r"rank (\d) of 2 on (\S+): loss (0\.\d+)")


@pytest.fixture(scope="module")
def ray(
    tmp_path_factory: pytest.TempPathFactory, docker: Docker, base_image: str
) -> Iterator[ContainerCluster]:
    """Three containers of Ray."""
    if why := missing_for_clusters(docker):
        pytest.skip(why)
    yield from cluster_that_runs("ray", tmp_path_factory.mktemp("ray"), base_image)


@pytest.fixture(scope="module")
def dask(
    tmp_path_factory: pytest.TempPathFactory, docker: Docker, base_image: str
) -> Iterator[ContainerCluster]:
    """Three containers of Dask."""
    if why := missing_for_clusters(docker):
        pytest.skip(why)
    yield from cluster_that_runs("dask", tmp_path_factory.mktemp("dask"), base_image)


def has(path: Path, text: str) -> Callable[[], bool]:
    """Whether a file has a text, once it is there."""
    return lambda: path.exists() and text in path.read_text()


def _assert_sound(cluster: ContainerCluster) -> dict[str, Any]:
    state = cluster.reported("cluster", "status")
    assert len(state["containers"]) == len(state["nodes"]) == 3
    assert state["findings"] == [] and state["unread"] == {}
    assert all(one["health"] == "healthy" for one in state["containers"])
    assert not any(one["is_root"] for one in state["nodes"])
    ports = [port for one in state["containers"] for port in one["ports"]]
    assert ports and all(port["address"] == "127.0.0.1" for port in ports)
    assert isinstance(state, dict)
    return state


def test_ray_comes_up_and_trains_as_one_process_does(ray: ContainerCluster) -> None:
    state = _assert_sound(ray)
    assert state["dashboards"][0]["address"] == "http://127.0.0.1:8265"
    _assert_trains_as_one_process_does(ray)


def _assert_trains_as_one_process_does(cluster: ContainerCluster) -> None:
    asked = ("train", "digits", "--epochs", "5", "--seed", "3", "--tune", "off")
    alone = cluster.reported(*asked)["run"]
    both = cluster.reported(*asked, "--on", "cluster:2")["run"]
    assert both["status"] == "finished" and both["started"]["num_ranks"] == 2
    # The same samples in the same order; sums over ranks round otherwise.
    accuracy = [one["validations"][-1]["metrics"]["accuracy"] for one in (alone, both)]
    assert abs(accuracy[0] - accuracy[1]) < 0.01
    assert (Path(both["folder"]) / "worker.rank1.log").exists()


def test_ray_makes_shards_and_trains_on_them(ray: ContainerCluster) -> None:
    _assert_shards_are_trained_on(ray)


def _assert_shards_are_trained_on(cluster: ContainerCluster) -> None:
    """The nodes make shards of data of this machine; one path leads both to them."""
    write_stripes(cluster.data / "stripes")
    words = ("ingest", "stripes", str(cluster.data / "shards"), "--validation", "0")
    made = cluster.reported(*words, "--on", "cluster")
    assert made["counts"] == {"train": 400, "validation": 0, "test": 100}
    assert made["on_nodes"] == "/data/shards" and made["num_made"] == made["num_pieces"]
    assert cluster.reported(*words, "--on", "cluster")["num_made"] == 0
    asked = ("train", "mnist", "-s", "shards=shards", "-s", "batch_size=40", "--epochs", "2",
             "--tune", "off")  # fmt: skip
    runs = [cluster.reported(*asked)["run"], cluster.reported(*asked, "--on", "cluster:2")["run"]]
    assert runs[1]["started"]["num_ranks"] == 2
    accuracy = [run["validations"][-1]["metrics"]["accuracy"] for run in runs]
    assert min(accuracy) > 0.9, accuracy


def write_stripes(folder: Path) -> None:
    """IDX files as MNIST has them, of noise with a bright stripe whose height is the class."""
    folder.mkdir()
    dice = random.Random(7)
    for part, count in (("train", 400), ("t10k", 100)):
        labels = bytes(index % 10 for index in range(count))
        pixels = b"".join(
            dice.randbytes(56 * label) + b"\xff" * 56 + dice.randbytes(56 * (13 - label))
            for label in labels
        )
        images = struct.pack(">4B3I", 0, 0, 8, 3, count, 28, 28) + pixels
        (folder / f"{part}-images-idx3-ubyte").write_bytes(images)
        head = struct.pack(">4BI", 0, 0, 8, 1, count)
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(head + labels)


def _assert_goes_on_without_a_worker(cluster: ContainerCluster, docker: Docker) -> None:
    words = ("train", "digits", "--epochs", "150", "--tune", "off", "--on", "cluster")
    process = cluster.start(*words, "--name", "bereft", "--json")
    folder = cluster.state / "runs" / "bereft"
    wait_until(has(folder / "events.jsonl", '"checkpointed"'), process)
    docker.must("kill", cluster.container("worker", 2))
    stdout, stderr = process.communicate(timeout=420)
    run = json.loads(stdout)["run"]
    assert run["status"] == "finished", stderr[-3000:]
    assert run["started"]["resumed"] and run["started"]["num_ranks"] == 1
    # Every epoch once: nothing was lost, nothing done twice.
    metrics = (folder / "metrics.jsonl").read_text().splitlines()
    epochs = [json.loads(line)["epoch"] for line in metrics if '"epochended"' in line]
    assert epochs == list(range(150))
    assert cluster.up()["findings"] == []


def test_ray_goes_on_without_a_worker_that_was_killed(
    ray: ContainerCluster, docker: Docker
) -> None:
    _assert_goes_on_without_a_worker(ray, docker)


def test_ray_job_stops_with_a_checkpoint_and_goes_on(ray: ContainerCluster) -> None:
    words = ("--epochs", "150", "--tune", "off", "--on", "cluster:2")
    process = ray.start("train", "digits", "--name", "halted", *words)
    wait_until(has(ray.state / "runs" / "halted" / "metrics.jsonl", '"validated"'), process)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)
    run = ray.reported("show", "halted")["run"]
    assert run["status"] == "stopped" and run["checkpoint_step"] == run["step"]
    again = ray.reported("train", "--resume", "halted", "--on", "cluster:2")["run"]
    assert again["status"] == "finished" and again["started"]["resumed"]


def test_a_cluster_grows_shrinks_and_keeps_its_runs(ray: ContainerCluster) -> None:
    assert len(ray.reported("cluster", "scale", "1", "--limit", "300")["containers"]) == 2
    assert len(ray.reported("cluster", "scale", "2", "--limit", "300")["containers"]) == 3
    ray.flatout("cluster", "stop")
    assert ray.flatout("cluster", "status").returncode == 1
    kept = ray.reported("cluster", "down")
    assert str(ray.state / "runs") in kept["folders"] and kept["volumes"]
    assert ray.reported("cluster", "status")["containers"] == []
    assert ray.flatout("train", "digits", "--on", "cluster").returncode == 2


def test_dask_comes_up_and_is_reached_on_loopback(dask: ContainerCluster) -> None:
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


def test_dask_makes_shards_and_trains_on_them(dask: ContainerCluster) -> None:
    _assert_shards_are_trained_on(dask)


def test_ranks_are_started_in_the_nodes_of_dask(dask: ContainerCluster, docker: Docker) -> None:
    _assert_trains_as_one_process_does(dask)
    _assert_goes_on_without_a_worker(dask, docker)


def test_a_script_runs_in_the_nodes_of_dask(dask: ContainerCluster) -> None:
    script = str(ROOT / "examples" / "launch" / "torch_ddp.py")
    done = dask.flatout("launch", "--framework", "torch", "--nodes", "2", "--on", "cluster", script)
    assert done.returncode == 0, done.stderr
    ranks, hosts, losses = zip(*_SAID.findall(done.stdout), strict=True)
    assert sorted(ranks) == ["0", "1"] and len(set(hosts)) == 2 and len(set(losses)) == 1


def test_ranks_go_on_when_the_command_line_is_killed(dask: ContainerCluster) -> None:
    process = dask.start("train", "digits", "--epochs", "60", "--tune", "off", "--on", "cluster:2",
                         "--name", "alone")  # fmt: skip
    events = dask.state / "runs" / "alone" / "events.jsonl"
    wait_until(has(events, '"started"'), process)
    process.kill()
    process.communicate()
    end = time.monotonic() + 180
    while '"finished"' not in events.read_text():
        assert time.monotonic() < end, events.read_text()[-2000:]
        time.sleep(0.5)
