"""Injects faults into trainings on a cluster of containers."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from containers import Docker, find_docker
from faults_runs import AT_STEP, Row, Runs, Unexpected, judged, strike
from support.container_cluster import ContainerCluster
from support.small_disk import can_be_mounted, small_disk

# The ranks are where they stay.
LOOK_STEP = 200
# Published on loopback, on a port that nothing else uses.
PORT = 8465
_PORTS = {"CLUSTER_DASHBOARD_PORT": str(PORT), "CLUSTER_SCHEDULER_PORT": str(PORT + 1)}
_WORKERS = (1, 2)
_TRIES = 3
# For the runs of a cluster, so that it can be filled.
_DISK = "64m"


@dataclass(kw_only=True)
class Cluster(Runs):
    """Runs on containers."""

    docker: Docker
    nodes: ContainerCluster
    names: dict[tuple[str, int], str] = field(default_factory=dict)

    def up(self) -> None:
        """Waits until all containers are healthy, and records their names."""
        found = self.nodes.up()["containers"]
        self.names.clear()
        self.names.update({(one["service"], one["number"]): one["name"] for one in found})

    def make_ready(self) -> None:
        """Starts all containers, including those that exited during their start."""
        for _ in range(_TRIES):
            try:
                self.up()
                # While all is well.
                self.reference()
                return
            except (AssertionError, Unexpected) as error:
                said = str(error)
        raise Unexpected(f"the cluster did not start: {said[-600:]}")

    def worker_of(self, rank: int) -> str:
        """The container of a rank."""
        for number in _WORKERS:
            name = self.names["worker", number]
            found = self.docker.ask("exec", name, "sh", "-c", "cat /proc/[0-9]*/environ").stdout
            if re.search(rf"(^|\0)RANK={rank}\0", found):
                return name
        raise Unexpected(f"no container has rank {rank}")

    def signal(self, name: str, rank: int, signal: str) -> None:
        """Sends a signal, such as "STOP", to a rank in its container."""
        ranks = f"grep --null-data --files-with-matches '^RANK={rank}$' /proc/[0-9]*/environ"
        text = f"kill -{signal} $({ranks} 2>/dev/null | cut -d/ -f3)"
        self.docker.must("exec", name, "sh", "-c", text)

    def num_kernel_kills(self, name: str) -> int:
        """Processes of a container that the kernel killed because it was out of memory."""
        files = "/sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control"
        reported = self.docker.ask("exec", name, "sh", "-c", f"cat {files} 2>/dev/null").stdout
        counts = re.findall(r"^oom_kill (\d+)", reported, re.MULTILINE)
        if not counts:
            raise Unexpected(f"cannot read from the kernel what it killed in {name}")
        return sum(map(int, counts))


@contextlib.contextmanager
def cluster(folder: Path, engine: str, epochs: int) -> Iterator[Cluster]:
    """Three containers, from an image that is built here."""
    docker = find_docker()
    place = folder / "there"
    place.mkdir()
    nodes = ContainerCluster(place, engine, f"faults-{engine}", _PORTS)
    there = Cluster(
            state=nodes.state, on="cluster:2", logs=folder / "logs", epochs=epochs, working=place,
            docker=docker, nodes=nodes,
    )  # fmt: skip
    with small_disk(nodes.state, _DISK) if can_be_mounted() else contextlib.nullcontext():
        try:
            nodes.make(docker.base_image())
            there.up()
            yield there
        finally:
            nodes.flatout("cluster", "down", "--volumes")
            docker.clean()


def container_killed(runs: Cluster, rank: int) -> Row:
    """`docker kill`; the training continues on the remaining container."""
    training = runs.begin(f"container-{rank}", on="cluster")
    training.wait_for_step(LOOK_STEP)
    name = runs.worker_of(rank)
    blow = strike(training, AT_STEP, lambda: runs.docker.must("kill", name))
    training.end()
    return judged(f"container of rank {rank} killed", training, runs.reference(), blow)


def out_of_memory(runs: Cluster) -> Row:
    """A rank allocates memory until it is killed, at its container's limit."""
    training = runs.begin("starved-of-memory", f"hog_at={AT_STEP}")
    training.wait_for_step(LOOK_STEP)
    name = runs.worker_of(1)
    before = runs.num_kernel_kills(name)
    # The last line of progress comes a little before.
    blow = replace(strike(training, AT_STEP - 30, lambda: None), step=AT_STEP - 1)
    training.end()
    row = judged("container out of memory", training, runs.reference(), blow)
    num_kills = runs.num_kernel_kills(name) - before
    if num_kills:
        return replace(row, reported=f"killed by the kernel ({num_kills} oom_kill), {row.reported}")
    if runs.nodes.engine != "ray":
        return replace(row, problem="the kernel killed nothing")
    return replace(row, reported=f"killed by Ray's memory monitor, {row.reported}")
