"""Runs the scripts of examples/launch on two containers: torch, TensorFlow and Paddle.

    python campaigns/cluster_examples.py [--frameworks torch,tensorflow,paddle]
        [--rounds 3]

The cluster is made by `flatout cluster init --engine torchrun`; `--with` adds the frameworks to its
image. `flatout launch --on cluster` starts each script; torchrun in each node also starts one of
them. Each node trains on batches of its own and prints the loss on a shared batch: if both losses
are equal, the nodes trained the same model.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from flatout.cluster.compose import docker as compose
from flatout.system.host_system import LocalSystem

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from containers import LABEL, Docker, find_docker
from progress import Problem
from support import dated
from support.container_cluster import ROOT, ContainerCluster, read_reported
from support.dated import Measurement

RESULTS = Path(__file__).with_name("results")
NODES = 2
EXAMPLES = ROOT / "examples" / "launch"
PACKAGES = {
    "torch": (),
    "tensorflow": ("tensorflow-cpu==2.21.0",),
    "paddle": ("paddlepaddle==3.3.1",),
}
# Paddle's wheel wants it, and a Debian with Python alone does not have it; gcc brings it along.
SETTINGS = {"CLUSTER_SYSTEM_PACKAGES": "libgomp1"}
# Before the first step it is about 140.
GOAL = 0.1
_RUN_LIMIT_S = 600
_SAID = re.compile(r"(?:rank|worker) (\d+) of (\d+) on (\S+): loss ([0-9.]+)")


class Case(msgspec.Struct, frozen=True):
    """A script, and what starts it: `flatout launch` or torchrun."""

    framework: str
    script: str
    by: str = "flatout launch"

    @property
    def name(self) -> str:
        """Its name in the table."""
        return f"{self.script} by {self.by}"


CASES = (
    Case("torch", "torch_ddp.py"),
    Case("torch", "torch_ddp.py", by="torchrun"),
    Case("torch", "torch_spawn.py"),
    Case("tensorflow", "tensorflow_workers.py"),
    Case("paddle", "paddle_parallel.py"),
)


class Said(msgspec.Struct, frozen=True):
    """What a node printed at its end."""

    rank: int
    world_size: int
    host: str
    loss: str


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """The results of a script, round by round. seconds: of the whole command."""

    case: Case
    seconds: tuple[float, ...]
    said: tuple[tuple[Said, ...], ...]


def main() -> int:
    """Runs the scripts, prints a table, writes the result; 1 if a script failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--frameworks", type=lambda text: text.split(","), default=list(PACKAGES))
    parser.add_argument("--rounds", type=int, default=3, help="how often each script is run")
    parser.add_argument(
        "--out", type=Path, default=RESULTS, help="output folder (default: results)"
    )
    options = parser.parse_args()
    packages = [one for name in options.frameworks for one in PACKAGES[name]]
    cases = [case for case in CASES if case.framework in options.frameworks]
    docker = find_docker()
    ran, failed = [], []
    with tempfile.TemporaryDirectory(prefix="flatout-examples-") as folder:
        cluster = ContainerCluster(Path(folder), "torchrun", "examples", SETTINGS, packages)
        try:
            up_s = come_up(cluster, docker)
            for case in cases:
                try:
                    ran.append(run(cluster, case, options.rounds))
                except AssertionError as error:
                    # What the others have shown is worth keeping.
                    failed.append(f"{case.name}: {error}")
        except (AssertionError, Problem) as error:
            sys.exit(str(error))
        finally:
            cluster.flatout("cluster", "down", "--volumes")
            docker.clean()
    return report(up_s, ran, failed, options)


def come_up(cluster: ContainerCluster, docker: Docker) -> float:
    """Seconds until all containers are healthy, from an existing image."""
    cluster.make(docker.base_image())
    cluster.label(f"{LABEL}={docker.owner}")
    cluster.build()
    for case in CASES:
        shutil.copy(EXAMPLES / case.script, cluster.data)
    began = time.monotonic()
    cluster.up()
    return time.monotonic() - began


def run(cluster: ContainerCluster, case: Case, rounds: int) -> Ran:
    """Runs a script several times in a row."""
    seconds, said = [], []
    for _ in range(rounds):
        began = time.monotonic()
        printed = by_torchrun(cluster, case) if case.by == "torchrun" else by_launch(cluster, case)
        seconds.append(time.monotonic() - began)
        said.append(read_said(printed))
        print(f"{case.name}: {seconds[-1]:.1f} s {said[-1]}", file=sys.stderr, flush=True)
    return Ran(case=case, seconds=tuple(seconds), said=tuple(said))


def by_launch(cluster: ContainerCluster, case: Case) -> str:
    """Output of the nodes, started by flatout from a file on this machine."""
    words = ("--framework", case.framework, "--nodes", str(NODES), "--on", "cluster", "--json")
    script = str(EXAMPLES / case.script)
    done = cluster.flatout("launch", *words, script, limit_s=_RUN_LIMIT_S)
    read_reported(done)
    return done.stderr


def by_torchrun(cluster: ContainerCluster, case: Case) -> str:
    """Output of the nodes, started as docs/cluster.md says, from their shared folder."""
    program = compose.find_compose(LocalSystem())
    meet = cluster.container("worker", 1)

    def start(node: int) -> subprocess.CompletedProcess[str]:
        own = ("torchrun", "--nnodes", str(NODES), "--node-rank", str(node), "--master-addr", meet)
        return subprocess.run(
            program.argv(cluster.folder / "cluster", "exec", "-T", "--index", str(node + 1),
                         "worker", *own, f"/data/{case.script}"),
            capture_output=True, text=True, timeout=_RUN_LIMIT_S, check=False,
        )  # fmt: skip

    with ThreadPoolExecutor(NODES) as pool:
        ended = list(pool.map(start, range(NODES)))
    for one in ended:
        assert one.returncode == 0, one.stderr[-2000:]
    return "".join(one.stdout for one in ended)


def read_said(printed: str) -> tuple[Said, ...]:
    """What the nodes printed about themselves, in rank order."""
    found = [
        Said(rank=int(rank), world_size=int(size), host=host, loss=loss)
        for rank, size, host, loss in _SAID.findall(printed)
    ]
    return tuple(sorted(found, key=lambda one: one.rank))


def faults(ran: Ran) -> Iterator[str]:
    """What is wrong with the results of a script."""
    for said in ran.said:
        if [(one.rank, one.world_size) for one in said] != [(rank, NODES) for rank in range(NODES)]:
            yield f"{ran.case.name}: not {NODES} ranks of {NODES}: {said}"
        elif len({one.host for one in said}) < NODES:
            yield f"{ran.case.name}: its ranks were on one host, {said[0].host}"
        elif len({one.loss for one in said}) > 1 or float(said[0].loss) > GOAL:
            yield f"{ran.case.name}: losses {[one.loss for one in said]}"


def report(up_s: float, ran: list[Ran], failed: list[str], options: argparse.Namespace) -> int:
    """Prints and writes the results; 1 if anything is wrong."""
    machine = dated.read_machine()
    print(f"machine   {dated.machine_text(machine)}")
    print(f"up        {up_s:.1f} s")
    wrong = failed + [line for one in ran for line in faults(one)]
    for one in ran:
        times = f"{min(one.seconds):5.1f} to {max(one.seconds):.1f} s"
        hosts = " and ".join(said.host for said in one.said[0])
        print(f"{one.case.name:40} {times}   on {hosts}: loss {one.said[0][0].loss}")
    for line in wrong:
        print(f"error     {line}")
    details = {
        "ran": [msgspec.to_builtins(one) for one in ran],
        "packages": PACKAGES, "goal": GOAL, "wrong": wrong,
    }  # fmt: skip
    path = dated.write_result(
        "cluster-examples", machine, measurements(up_s, ran), details, options.out
    )
    print(f"written   {path}")
    return 1 if wrong else 0


def measurements(up_s: float, ran: list[Ran]) -> list[Measurement]:
    """The table as numbers."""
    conditions = {"engine": "torchrun", "nodes": NODES}
    return [
        dated.measurement("up", "s", (up_s,), conditions),
        *(dated.measurement(f"{one.case.name}: run", "s", one.seconds, conditions) for one in ran),
    ]


if __name__ == "__main__":
    sys.exit(main())
