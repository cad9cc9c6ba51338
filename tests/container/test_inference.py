"""The role for inference of a cluster of real containers: it answers, serves, restarts, stops, is
gone.

Its runs come from this machine, as its user's do. torchrun is the engine, as the one of the
smallest image; the role is the same with each.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from containers import Docker
from support.container_cluster import (
    ContainerCluster,
    cluster_that_runs,
    missing_for_clusters,
    wait_until,
)

np = pytest.importorskip("numpy", reason="needs numpy, to write pictures")
Image = pytest.importorskip("PIL.Image", reason="needs Pillow, to write pictures")

RUN = "reader"
ON = ("--on", "cluster")
# How long a container may take to end by itself once nobody waits for its answer.
ENDS_S = 30.0


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, docker: Docker, base_image: str
) -> Iterator[ContainerCluster]:
    """Three containers of torchrun, a run, and pictures in the data of its nodes."""
    if why := missing_for_clusters(docker):
        pytest.skip(why)
    folder = tmp_path_factory.mktemp("inference")
    for made in cluster_that_runs("torchrun", folder, base_image):
        made.reported("train", "digits", "--epochs", "2", "--tune", "off", "--name", RUN)
        rng = np.random.default_rng(7)
        np.save(made.data / "few.npy", rng.integers(0, 256, (8, 8, 8), dtype=np.uint8))
        np.save(made.data / "many.npy", rng.integers(0, 256, (400_000, 8, 8), dtype=np.uint8))
        yield made


def started(cluster: ContainerCluster, docker: Docker, *options: str) -> list[str]:
    """Containers that were started for one answer: ids."""
    labels = ("project=" + cluster.project, "service=inference", "oneoff=True")
    words = [word for one in labels for word in ("--filter", f"label=com.docker.compose.{one}")]
    return docker.must("ps", "--quiet", *options, *words).split()


def predicted(cluster: ContainerCluster, *options: str) -> list[tuple[str, float]]:
    """Label and probability of each of the few pictures."""
    made = cluster.reported("predict", RUN, str(cluster.data / "few.npy"), *options)
    assert {one["input"] for one in made["predictions"]} == {str(cluster.data / "few.npy")}
    return [(one["label"], one["probability"]) for one in made["predictions"]]


def assert_answers(cluster: ContainerCluster, docker: Docker) -> None:
    """The role answers as this machine does, and its container is removed."""
    here, inside = predicted(cluster), predicted(cluster, *ON)
    assert len(inside) == 8 and [one for one, _ in inside] == [one for one, _ in here]
    for (_, probability), (_, other) in zip(here, inside, strict=True):
        assert abs(probability - other) < 1e-4
    assert started(cluster, docker, "--all") == []


def test_role_answers_as_this_machine_does(cluster: ContainerCluster, docker: Docker) -> None:
    assert_answers(cluster, docker)
    evaluated = cluster.reported("evaluate", RUN, *ON)
    here = cluster.reported("evaluate", RUN)
    assert evaluated["metrics"]["accuracy"] == here["metrics"]["accuracy"]
    # The image has a Python of its own.
    assert all(one.startswith("python ") for one in evaluated["differences"])
    output = cluster.data / "found.csv"
    cluster.reported("predict", RUN, str(cluster.data / "few.npy"), "--output", str(output), *ON)
    assert len(output.read_text().splitlines()) == 9
    # It belongs to the person, and not to root, unless root is the person.
    assert output.stat().st_uid == cluster.data.stat().st_uid


def test_role_answers_while_the_nodes_are_stopped(
    cluster: ContainerCluster, docker: Docker
) -> None:
    cluster.flatout("cluster", "stop")
    assert_answers(cluster, docker)
    assert cluster.flatout("cluster", "status").returncode == 1, "a node was started"
    assert len(cluster.up()["nodes"]) == 3
    assert_answers(cluster, docker)


def test_service_keeps_its_runs_over_a_restart_and_stops_at_once(
    cluster: ContainerCluster, docker: Docker
) -> None:
    name = f"{cluster.project}-service"
    words = ("run", "--detach", "--no-deps", "--name", name, "inference", "sleep", "infinity")
    cluster.compose(*words)
    try:
        docker.must("restart", "--time", "20", name)
        listed = docker.must("exec", name, "flatout", "runs", "--json")
        assert [Path(one["folder"]).name for one in json.loads(listed)] == [RUN]
        # It is no node.
        assert len(cluster.reported("cluster", "status")["containers"]) == 3
        began_s = time.monotonic()
        docker.must("stop", "--time", "60", name)
        assert time.monotonic() - began_s < 30
        state = docker.must("inspect", "--format", "{{.State.ExitCode}} {{.Config.User}}", name)
        code, user = state.split()
        # By SIGTERM, and not by the SIGKILL that comes when the time is up.
        assert code == "143" and not user.startswith("0:")
    finally:
        docker.ask("rm", "--force", name)


def start_long(cluster: ContainerCluster) -> tuple[subprocess.Popen[str], Path]:
    """An answer that takes a minute, part of it written; and the file that is to come."""
    output = cluster.data / "long.csv"
    words = (str(cluster.data / "many.npy"), "--batch-size", "1", "--output", str(output))
    part = output.with_name("long.csv.part")
    # A killed command leaves it.
    part.unlink(missing_ok=True)
    process = cluster.start("predict", RUN, *words, *ON)
    wait_until(lambda: part.exists() and part.stat().st_size > 0, process)
    return process, output


def test_nothing_is_left_when_a_person_interrupts(
    cluster: ContainerCluster, docker: Docker
) -> None:
    process, output = start_long(cluster)
    assert len(started(cluster, docker)) == 1
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in stderr, stderr
    assert started(cluster, docker, "--all") == []
    assert not list(output.parent.glob("long.csv*"))


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL])
def test_container_ends_when_its_command_is_killed(
    cluster: ContainerCluster, docker: Docker, sent: signal.Signals
) -> None:
    process, output = start_long(cluster)
    process.send_signal(sent)
    process.communicate(timeout=60)
    # It ends by itself: nobody waits for its answer.
    end_s = time.monotonic() + ENDS_S
    while started(cluster, docker):
        assert time.monotonic() < end_s, docker.must("ps", "--all")
        time.sleep(0.2)
    assert not output.exists()
    assert len(predicted(cluster, *ON)) == 8


def test_container_that_is_killed_is_reported(cluster: ContainerCluster, docker: Docker) -> None:
    process, output = start_long(cluster)
    docker.must("kill", *started(cluster, docker))
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1 and "exited unexpectedly" in stderr, stderr
    assert not list(output.parent.glob("long.csv*"))


@contextlib.contextmanager
def serving(
    cluster: ContainerCluster, num_replicas: int
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A server on this machine whose replicas are containers, and its address; ended by Ctrl-C."""
    words = ("serve", RUN, *ON, "--replicas", str(num_replicas), "--port", "0", "--json")
    process = cluster.start(*words)
    assert process.stdout is not None
    ready: dict[str, Any] = {}
    try:
        while ready.get("event") != "ready":
            line = process.stdout.readline()
            assert line, process.communicate()[1]
            ready = json.loads(line)
        yield ready["url"], process
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
        assert process.returncode == 0, stderr
        assert json.loads(stdout.splitlines()[-1])["num_failed"] == 0
    finally:
        process.kill()
        process.wait()


def asked(url: str, pictures: Sequence[Path]) -> list[str]:
    """The labels of pictures, by a server."""
    labels = []
    for picture in pictures:
        headers = {"Content-Type": "image/png"}
        request = urllib.request.Request(f"{url}/predict", picture.read_bytes(), headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            ((row,),) = json.load(answer)["predictions"]
        labels.append(row["label"])
    return labels


def test_server_is_one_address_in_front_of_containers(
    cluster: ContainerCluster, docker: Docker
) -> None:
    pictures = [cluster.data / f"{number}.png" for number in range(8)]
    for picture, pixels in zip(pictures, np.load(cluster.data / "few.npy"), strict=True):
        Image.fromarray(pixels).save(picture)
    made = cluster.reported("predict", RUN, *map(str, pictures))
    labels = [one["label"] for one in made["predictions"]]
    is_over = threading.Event()

    def client() -> list[list[str]]:
        found = []
        while not is_over.is_set():
            found.append(asked(url, pictures))
        return found

    with ThreadPoolExecutor(4) as pool, serving(cluster, 2) as (url, process):
        try:
            first = set(started(cluster, docker))
            assert len(first) == 2
            clients = [pool.submit(client) for _ in range(4)]
            # What it computes is computed again.
            docker.must("kill", min(first))
            wait_until(lambda: len(set(started(cluster, docker)) - {min(first)}) == 2, process)
            # Others take the place of both.
            port = url.rpartition(":")[2]
            cluster.reported("serve", "swap", RUN, *ON, "--port", port)
            wait_until(lambda: not first & set(started(cluster, docker)), process)
        finally:
            is_over.set()
        assert all(found == labels for one in clients for found in one.result())
        assert asked(url, pictures) == labels
    assert started(cluster, docker, "--all") == []


def test_down_leaves_no_container(cluster: ContainerCluster, docker: Docker) -> None:
    cluster.reported("cluster", "down")
    label = f"label=com.docker.compose.project={cluster.project}"
    assert docker.must("ps", "--all", "--quiet", "--filter", label) == ""
    # The image is there still, which is enough.
    assert_answers(cluster, docker)
