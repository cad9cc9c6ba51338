"""Ingests and trains MNIST on three containers (Ray, then Dask), and kills a worker.

    python campaigns/cluster_mnist.py [--engines ray,dask] [--epochs 2]
        [--samples N] [--seeds 3]

For each engine, using the command line only: start a head and two workers, ingest MNIST into shards
on the workers, train `mnist` on two ranks, and kill the container of one rank halfway. The training
must resume from the last checkpoint by itself on the remaining worker. Its accuracy is compared
with that of one process on this machine, with the same shards and epochs; other seeds show how much
the accuracy varies anyway.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from flatout.errors import UsageError
from flatout.schema.run_lines import Checkpointed, EpochEnded, Event, Metric, Progress, Started
from flatout.system import atomic_files
from flatout.system.store import datasets
from flatout.system.store.run_folder import RunFolder

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from containers import Docker, find_docker
from progress import Problem
from support import dated
from support.container_cluster import BUILD_LIMIT_S, ContainerCluster, read_reported, wait_until
from support.dated import Measurement

RESULTS = Path(__file__).with_name("results")
# Not used by other clusters on this machine.
PORTS = {
    "ray": {"CLUSTER_DASHBOARD_PORT": "18265"},
    "dask": {"CLUSTER_SCHEDULER_PORT": "18786", "CLUSTER_DASHBOARD_PORT": "18787"},
}
# Ranks round differently, and BatchNorm sees half a batch: that differs as much as another seed.
TOLERANCE = 0.005
TRAIN_LIMIT_S = 1800.0
MOST_STARTS = 4


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """The results of one engine's cluster.

    up_s: from the command until all containers are healthy, with the image built; num_starts: how
    many times the command was needed. killed_step, lost_s: the step at which the worker died, and
    the time until the training reached that step again. repeated_steps: from the last checkpoint to
    that step. ranks: before and after.
    """

    engine: str
    up_s: float
    num_starts: int
    ingest_s: float
    num_records: int
    shards: dict[str, str]
    train_s: float
    num_steps: int
    killed_step: int
    repeated_steps: int
    lost_s: float
    ranks: tuple[int, int]
    epochs: tuple[int, ...]
    accuracy: float


def main() -> int:
    """Measures, prints a table, writes the result; 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engines", type=lambda text: text.split(","), default=["ray", "dask"])
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--samples", type=int, help="images to train on; all of them by default")
    parser.add_argument("--seeds", type=int, default=3, help="trainings by one process")
    parser.add_argument(
        "--out", type=Path, default=RESULTS, help="output folder (default: results)"
    )
    options = parser.parse_args()
    words = ["train", "mnist", "-s", "shards=shards", "--epochs", str(options.epochs)]
    words += ["--tune", "off", "--json"]
    words += [] if options.samples is None else ["-s", f"samples={options.samples}"]
    docker = find_docker()
    rows, alone, failed = [], [], []
    with tempfile.TemporaryDirectory(prefix="flatout-mnist-") as folder:
        for engine in options.engines:
            place = Path(folder, engine)
            place.mkdir()
            cluster = ContainerCluster(place, engine, f"mnist-{engine}", PORTS[engine])
            try:
                rows.append(measure(cluster, docker, words))
            except (AssertionError, Problem) as error:
                # What the other engine has shown is worth keeping.
                failed.append(f"{engine}: {error}"[:2000])
                continue
            finally:
                cluster.flatout("cluster", "down", "--volumes")
            alone = alone or [one_process(cluster, words, seed)
                              for seed in range(options.seeds)]  # fmt: skip
    if not rows:
        sys.exit("\n".join(failed))
    return report(rows, alone, failed, options)


def measure(cluster: ContainerCluster, docker: Docker, words: list[str]) -> Row:
    """Measures one engine, from creating the cluster's files to the end of the training."""
    cluster.make(docker.base_image())
    cluster.build()
    put_mnist(cluster.data)
    say(cluster, "comes up")
    began = time.monotonic()
    num_starts = come_up(cluster)
    up_s = time.monotonic() - began
    say(cluster, f"up after {up_s:.1f} s; ingests")
    began = time.monotonic()
    shards = str(cluster.data / "shards")
    ingested = cluster.reported(
        "ingest", "mnist", shards, "--validation", "0", "--on", "cluster", limit_s=600
    )
    ingest_s = time.monotonic() - began
    manifest = msgspec.json.decode((cluster.data / "shards/manifest.json").read_bytes())
    say(cluster, f"has ingested {ingested['counts']} in {ingest_s:.1f} s; trains")
    began = time.monotonic()
    process = cluster.start(*words, "--on", "cluster", "--name", "mnist")
    folder = RunFolder(cluster.state / "runs/mnist")
    killed_step, killed_at = kill_midway(cluster, docker, folder, process)
    stdout, stderr = process.communicate(timeout=TRAIN_LIMIT_S)
    train_s = time.monotonic() - began
    done = subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)
    run = read_reported(done)["run"]
    starts = [
        line for line in atomic_files.read_lines(folder.events, Event) if isinstance(line, Started)
    ]
    metrics = atomic_files.read_lines(folder.metrics, Metric)
    again = next(line for line in metrics if isinstance(line, Progress) and line.at > killed_at
                 and line.step >= killed_step)  # fmt: skip
    return Row(
        engine=cluster.engine,
        up_s=up_s,
        num_starts=num_starts,
        ingest_s=ingest_s,
        num_records=sum(ingested["counts"].values()),
        shards={shard["file"]: shard["sha256"] for shard in manifest["shards"]},
        train_s=train_s,
        num_steps=run["step"],
        killed_step=killed_step,
        repeated_steps=killed_step - starts[-1].step,
        lost_s=again.at - killed_at,
        ranks=(starts[0].num_ranks, starts[-1].num_ranks),
        epochs=tuple(line.epoch for line in metrics if isinstance(line, EpochEnded)),
        accuracy=run["validations"][-1]["metrics"]["accuracy"],
    )


def come_up(cluster: ContainerCluster) -> int:
    """Starts all containers; returns the number of tries, since Ray's head exits after 30 s."""
    for attempt in range(1, MOST_STARTS):
        done = cluster.flatout("cluster", "up", "--limit", "300", limit_s=BUILD_LIMIT_S)
        if done.returncode == 0:
            return attempt
        say(cluster, f"is not up: {done.stderr[-400:]}")
        cluster.flatout("cluster", "down")
    cluster.up()
    return MOST_STARTS


def kill_midway(
    cluster: ContainerCluster, docker: Docker, folder: RunFolder, process: subprocess.Popen[str]
) -> tuple[int, float]:
    """Kills the second worker after half of the steps; returns the step and the time."""
    name = cluster.container("worker", 2)

    def is_midway() -> bool:
        if not folder.events.exists() or not folder.metrics.exists():
            return False
        events = atomic_files.read_lines(folder.events, Event)
        total = next((one.num_steps or 0 for one in events if isinstance(one, Started)), 0)
        is_kept = any(isinstance(one, Checkpointed) and one.step for one in events)
        return is_kept and last_step(folder) >= total // 2 > 0

    wait_until(is_midway, process, limit_s=TRAIN_LIMIT_S)
    killed_at = time.time()
    docker.must("kill", name)
    killed_step = last_step(folder)
    say(cluster, f"lost {name} at step {killed_step}")
    return killed_step, killed_at


def last_step(folder: RunFolder) -> int:
    """The last step that a training reported."""
    reported = atomic_files.read_lines(folder.metrics, Metric)
    return max((line.step for line in reported if isinstance(line, Progress)), default=0)


def one_process(cluster: ContainerCluster, words: list[str], seed: int) -> float:
    """The accuracy of training in one process on this machine, with the same shards."""
    own = ("--seed", str(seed), "--name", f"alone-{seed}")
    run = read_reported(cluster.flatout(*words, *own, limit_s=TRAIN_LIMIT_S))["run"]
    accuracy = float(run["validations"][-1]["metrics"]["accuracy"])
    print(f"one process, seed {seed}: {accuracy:.2%}", file=sys.stderr, flush=True)
    return accuracy


def put_mnist(data: Path) -> None:
    """Copies MNIST's files into a data folder that containers can write to."""
    found = datasets.find("mnist")
    if found is None:
        raise UsageError("data-missing", "MNIST is not here.", fix="flatout data get mnist")
    (data / "mnist").mkdir()
    for file in found.iterdir():
        shutil.copyfile(file, data / "mnist" / file.name)


def say(cluster: ContainerCluster, text: str) -> None:
    """Prints the progress."""
    print(f"{cluster.engine} {text}", file=sys.stderr, flush=True)


def report(
    rows: list[Row], alone: list[float], failed: list[str], options: argparse.Namespace
) -> int:
    """Prints and writes the results; 1 if anything is wrong."""
    machine = dated.read_machine()
    print(f"machine   {dated.machine_text(machine)}")
    print(f"{'':6}{'up':>7}{'ingest':>9}{'records':>9}{'train':>9}{'killed at':>12}{'lost':>8}"
          f"{'ranks':>8}{'accuracy':>11}")  # fmt: skip
    for row in rows:
        print(f"{row.engine:6}{row.up_s:5.1f} s{row.ingest_s:7.1f} s{row.num_records:9,}"
              f"{row.train_s:7.0f} s{row.killed_step:6} of {row.num_steps}{row.lost_s:6.1f} s"
              f"{row.ranks[0]:5} > {row.ranks[1]}{row.accuracy:10.2%}")  # fmt: skip
    spread = f"{min(alone):.2%} to {max(alone):.2%} with other seeds" if len(alone) > 1 else ""
    print(f"one process: {alone[0]:.2%}   {spread}")
    wrong = failed + [
        line for row in rows for line in faults(row, rows[0], alone[0], options.epochs)
    ]
    for line in wrong:
        print(f"error     {line}")
    details: dict[str, Any] = {"rows": [msgspec.to_builtins(row) for row in rows],
                               "alone": alone, "tolerance": TOLERANCE, "wrong": wrong}  # fmt: skip
    path = dated.write_result(
        "cluster-mnist", machine, measurements(rows, alone, options), details, options.out
    )
    print(f"written   {path}")
    return 1 if wrong else 0


def faults(row: Row, first: Row, alone: float, num_epochs: int) -> list[str]:
    """What is wrong with the results of one engine."""
    found = {
        f"accuracy {row.accuracy:.2%} beside {alone:.2%}": abs(row.accuracy - alone) > TOLERANCE,
        f"epochs {row.epochs}": row.epochs != tuple(range(num_epochs)),
        f"shards differ from those of {first.engine}": row.shards != first.shards,
        f"trained with {row.ranks} ranks": row.ranks[0] != 2,
    }
    return [f"{row.engine}: {text}" for text, is_so in found.items() if is_so]


def measurements(
    rows: list[Row], alone: list[float], options: argparse.Namespace
) -> list[Measurement]:
    """The table as numbers."""
    conditions = {"epochs": options.epochs, "samples": options.samples, "workers": 2}
    found = [dated.measurement("one process: accuracy", "1", tuple(alone), conditions)]
    for row in rows:
        values = {
            "up": (row.up_s, "s"), "ingest": (row.ingest_s, "s"), "train": (row.train_s, "s"),
            "lost": (row.lost_s, "s"), "accuracy": (row.accuracy, "1"),
        }  # fmt: skip
        found += [
            dated.measurement(f"{row.engine}: {name}", unit, (value,), conditions)
            for name, (value, unit) in values.items()
        ]
    return found


if __name__ == "__main__":
    sys.exit(main())
