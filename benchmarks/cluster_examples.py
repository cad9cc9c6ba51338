"""The scripts of examples/launch on two nodes that are containers: torch, TensorFlow and Paddle.

    PYTHONPATH=scripts python benchmarks/cluster_examples.py [--frameworks torch,tensorflow,paddle]

A cluster of `flatout cluster init --engine torchrun` whose image has all of them; each script runs
by `flatout launch --on cluster`, and must end on both nodes with the same small loss.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from pathlib import Path

import dated
import msgspec
from container_cluster import ROOT, ContainerCluster, read_told
from containers import find_docker

PACKAGES = {
    "torch": (),
    "tensorflow": ("tensorflow-cpu==2.21.0",),
    "paddle": ("paddlepaddle==3.3.1",),
}
SCRIPTS = {
    "torch": ("torch_spawn.py", "1"),
    "tensorflow": ("tensorflow_workers.py",),
    "paddle": ("paddle_parallel.py",),
}
_SAID = re.compile(r"node (\d)  .* of (\d): loss ([0-9.]+)")
GOAL = 0.01


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """How a script has ended: its seconds, how many it said there are, and the loss of each."""

    framework: str
    seconds: float
    world_size: int
    losses: tuple[float, ...]

    @property
    def is_right(self) -> bool:
        """Whether both nodes trained together."""
        return self.world_size == len(self.losses) == 2 and max(self.losses) < GOAL


def main() -> int:
    """Runs the scripts, prints a table, writes the result; 1 if one has not trained."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--frameworks", type=lambda text: text.split(","), default=list(SCRIPTS))
    parser.add_argument("--out", type=Path, default=dated.RESULTS, help="folder for the result")
    options = parser.parse_args()
    packages = [one for name in options.frameworks for one in PACKAGES[name]]
    docker = find_docker()
    with tempfile.TemporaryDirectory(prefix="flatout-examples-") as folder:
        cluster = ContainerCluster(Path(folder), "torchrun", "flatout-examples", packages=packages)
        try:
            cluster.make(docker.base_image())
            cluster.up()
            ran = [run(cluster, name) for name in options.frameworks]
        finally:
            cluster.flatout("cluster", "down", "--volumes")
    machine = dated.read_machine()
    print(f"machine      {dated.machine_text(machine)}")
    for one in ran:
        losses = ", ".join(f"{loss:.6f}" for loss in one.losses)
        print(f"{one.framework:12} {one.seconds:5.1f} s   {one.world_size} nodes   loss {losses}")
    measured = [
        dated.measurement(f"{one.framework}: run", "s", (one.seconds,), {"nodes": 2}) for one in ran
    ]
    details = {"ran": [msgspec.to_builtins(one) for one in ran], "goal": GOAL}
    path = dated.write_result("cluster-examples", machine, measured, details, options.out)
    print(f"written      {path}")
    return 0 if all(one.is_right for one in ran) else 1


def run(cluster: ContainerCluster, framework: str) -> Ran:
    """One script on two nodes."""
    script, *arguments = SCRIPTS[framework]
    path = str(ROOT / "examples" / "launch" / script)
    words = ("--framework", framework, "--nodes", "2", "--on", "cluster", "--json")
    began = time.monotonic()
    done = cluster.flatout("launch", *words, path, *arguments, limit_s=600)
    seconds = time.monotonic() - began
    read_told(done)
    said = {node: (int(count), float(loss)) for node, count, loss in _SAID.findall(done.stderr)}
    counts = {count for count, _ in said.values()}
    return Ran(
        framework=framework,
        seconds=seconds,
        world_size=counts.pop() if len(counts) == 1 else 0,
        losses=tuple(loss for _, (_, loss) in sorted(said.items())),
    )


if __name__ == "__main__":
    sys.exit(main())
