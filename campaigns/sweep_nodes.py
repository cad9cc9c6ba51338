"""Sweeps whose trials train on two ranks: a rank is killed, or a node of a Ray cluster.

    python campaigns/sweep_nodes.py [--places here,ray,containers] [--trials 4]

A random search over a small classifier, one trial at a time. It is carried out once without a
fault, on two ranks of this machine, and then in each place with faults:

here        rank 1 is killed during trial 2, rank 0 during trial 3
ray         a Ray of two nodes on this machine: the processes of the node with rank 1 are killed
            during trial 2; all that follows trains on the other
containers  a Ray of two containers (Docker): that of rank 1 is killed during trial 2

The result file names the places that it lacks.

Promised: every trial is there once and has finished, with the parameters and the value that it has
without faults (where the number of ranks changes, to 1e-9), and has trained on as many samples.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import psutil
from faults_runs import Training, Unexpected, story, strike
from killed_run import WITHOUT_PICTURES
from support import dated
from support.dated import Measurement

from flatout.schema.run import Run
from flatout.schema.run_lines import Event, Finished, Started
from flatout.schema.sweep import SweepTrial
from flatout.system import atomic_files
from flatout.system.store.run_folder import RunFolder, read_run

RESULTS = Path(__file__).with_name("results")
EXPERIMENT = Path(__file__).with_name("sweep_nodes_experiment.py")
PLACES = ("here", "ray", "containers")
# Of 168 steps, with checkpoints every 20.
AT_STEP = 60
RECIPE = {"device": "cpu", "num_threads": 1, "checkpoint_every": 20}
LIMIT_S = 900.0
_CLOSE = 1e-9


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where the trials of a sweep train.

    on: the value of `--on`. state: of flatout, with the runs. working: the working folder.
    pause_s: minimum seconds per step, so that a fault hits before the end. faults: the rank that is
    lost, by the trial during which it is. kill: kills what a rank of a training runs on.
    variables: added to those of this process.
    """

    on: str
    state: Path
    working: Path
    pause_s: float
    faults: dict[int, int]
    kill: Callable[[Training, int], object]
    variables: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Swept:
    """A sweep that has ended: its folder, its runs by trial, how long it took."""

    folder: Path
    runs: dict[int, RunFolder]
    took_s: float
    stories: dict[int, str]

    def trials(self) -> list[SweepTrial]:
        """The lines of `trials.jsonl`."""
        lines: list[SweepTrial] = atomic_files.read_lines(self.folder / "trials.jsonl", SweepTrial)
        return lines


def main() -> int:
    """Carries the sweeps out, writes the result; 1 if a promise was broken."""
    options = _options()
    machine = dated.read_machine()
    print(f"machine   {dated.machine_text(machine)}")
    measurements: list[Measurement] = []
    problems: list[str] = []
    path: Path | None = None
    missing = list(PLACES)
    details: dict[str, Any] = {
        "trials": options.trials, "versions": dated.versions("optuna", "ray")
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="sweep-nodes-", ignore_cleanup_errors=True) as folder:
        here = place_here(Path(folder, "here"))
        whole = carried_out(here, "whole", options.trials, {})
        print(f"without faults  {whole.took_s:.0f} s", flush=True)
        measurements.append(Measurement(name="sweep", value=whole.took_s, unit="s"))
        for place_name in options.places:
            with place_of(place_name, Path(folder), here) as place:
                row = with_faults(whole, place, options.trials)
            show(place_name, row)
            problems += [row["problem"]] if row["problem"] else []
            missing.remove(place_name)
            details |= {place_name: row, "missing": missing}
            if "took_s" in row:
                measurements.append(
                    Measurement(name=f"sweep, {place_name}", value=row["took_s"], unit="s")
                )
            # What is done is kept, if this is ended.
            name = "-".join(["sweep-nodes", *(["without", *missing] if missing else [])])
            before = path
            path = dated.write_result(name, machine, measurements, details, options.out)
            if before is not None and before != path:
                before.unlink()
    if path is not None:
        print(f"written   {path}")
    return 1 if problems or path is None else 0


def with_faults(whole: Swept, place: Place, num_trials: int) -> dict[str, Any]:
    """Carries out a sweep with faults; how it compares with the one without."""
    try:
        struck = carried_out(place, "struck", num_trials, place.faults)
    except Unexpected as error:
        return {"on": place.on, "problem": str(error)}
    problem, farthest = difference(whole, struck, place)
    return {"on": place.on, "took_s": struck.took_s, "stories": struck.stories,
            "farthest": farthest, "problem": problem}  # fmt: skip


def show(name: str, row: dict[str, Any]) -> None:
    """Prints what came of a sweep with faults."""
    if "took_s" in row:
        print(f"{name:16}{row['took_s']:.0f} s, values apart by {row['farthest']:.0e}")
    for number, text in row.get("stories", {}).items():
        print(f"    trial {number}: {text}")
    if row["problem"] is not None:
        print(f"    WRONG: {row['problem']}")
    sys.stdout.flush()


@contextlib.contextmanager
def place_of(name: str, folder: Path, here: Place) -> Iterator[Place]:
    """A place by its name."""
    if name == "here":
        yield here
    elif name == "ray":
        with ray_nodes(folder / "ray") as place:
            yield place
    else:
        with containers(folder) as place:
            yield place


def place_here(folder: Path) -> Place:
    """Two ranks on this machine."""
    folder.mkdir()
    return Place(
        on="local:2", state=folder / "state", working=folder, pause_s=0.03, faults={2: 1, 3: 0},
        kill=lambda training, rank: training.ranks()[rank].kill(),
    )  # fmt: skip


@contextlib.contextmanager
def ray_nodes(folder: Path) -> Iterator[Place]:
    """Two nodes of a Ray, each with one CPU; both are processes of this machine."""
    from ray.cluster_utils import Cluster

    folder.mkdir()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    try:
        nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
        raylets = [one.process.pid for node in nodes for one in node.all_processes["raylet"]]
        yield Place(
            on="ray", state=folder / "state", working=folder, pause_s=0.05, faults={2: 1},
            kill=partial(kill_node, raylets), variables={"RAY_ADDRESS": cluster.address},
        )  # fmt: skip
    finally:
        cluster.shutdown()


def kill_node(raylets: list[int], training: Training, rank: int) -> None:
    """Kills the node that a rank is on, with all of its processes."""
    above = {one.pid for one in training.ranks()[rank].parents()}
    (raylet,) = above & set(raylets)
    node = psutil.Process(raylet)
    for one in (node, *node.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()


@contextlib.contextmanager
def containers(folder: Path) -> Iterator[Place]:
    """A Ray of three containers, two of which train."""
    import faults_cluster

    with faults_cluster.cluster(folder, "ray", 1) as there:
        yield Place(
            on="cluster", state=there.state, working=there.working, pause_s=0.1, faults={2: 1},
            kill=lambda training, rank: there.docker.must("kill", there.worker_of(rank)),
            variables=there.nodes.environment(),
        )  # fmt: skip


def carried_out(place: Place, name: str, num_trials: int, faults: dict[int, int]) -> Swept:
    """Carries out a sweep, with faults during some of its trials.

    Raises:
        Unexpected: it has failed, or a fault had no effect.
    """
    place.state.mkdir(parents=True, exist_ok=True)
    log = place.state / f"{name}.log"
    words = ["-s", "lr=0.01..0.1:log", "-s", f"pause={place.pause_s}", "--sampler", "random",
             "--trials", str(num_trials), "--tune", "off", "--on", place.on, "--name", name,
             *(f"--use={field}={value}" for field, value in RECIPE.items())]  # fmt: skip
    began_s = time.monotonic()
    with open(log, "wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", WITHOUT_PICTURES, "sweep", str(EXPERIMENT), *words],
            stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, cwd=place.working,
            env={**os.environ, **place.variables, "FLATOUT_STATE": str(place.state)},
        )  # fmt: skip
    runs = {
        number: RunFolder(place.state / "runs" / f"{name}-{number:03d}")
        for number in range(1, num_trials + 1)
    }
    struck = {number: Training(runs[number], process, log) for number in faults}
    try:
        for number, training in struck.items():
            strike(training, AT_STEP, partial(place.kill, training, faults[number]))
        code = process.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        raise Unexpected(f"not ended after {LIMIT_S:.0f} s: {output_of(log)}") from None
    finally:
        process.kill()
    if code:
        raise Unexpected(f"ended with {code}: {output_of(log)}")
    stories = {number: story(training) for number, training in struck.items()}
    folder = place.state / "sweeps" / name
    return Swept(folder=folder, runs=runs, took_s=time.monotonic() - began_s, stories=stories)


def output_of(log: Path) -> str:
    """The end of what a command has printed."""
    return log.read_text(encoding="utf-8", errors="replace")[-1500:]


def difference(whole: Swept, struck: Swept, place: Place) -> tuple[str | None, float]:
    """What differs from the sweep without faults, if anything; and how far apart values are."""
    lines = struck.trials()
    stands = [(one.trial, one.has_ended) for one in lines]
    if sorted(stands) != [(one, is_end) for one in struck.runs for is_end in (False, True)]:
        return f"trials.jsonl has {stands}", 0.0
    there = sorted(path.name for path in (place.state / "runs").glob("struck-*"))
    if there != [run.path.name for run in struck.runs.values()]:
        return f"the runs are {there}", 0.0
    farthest = 0.0
    for one, other in zip(ends(struck), ends(whole), strict=True):
        if one.status != "finished" or one.parameters != other.parameters:
            return f"trial {one.trial} {one.status} with {one.parameters}", farthest
        assert one.value is not None and other.value is not None
        farthest = max(farthest, abs(one.value - other.value))
        counts = [counted(of.runs[one.trial]) for of in (struck, whole)]
        if counts[0] != counts[1]:
            return f"trial {one.trial} has {counts[0]}, not {counts[1]}", farthest
        if one.trial in place.faults and num_starts(struck.runs[one.trial]) < 2:
            return f"trial {one.trial} was not restarted", farthest
    # With as many ranks as before, every sum is of the same parts.
    limit = 0.0 if place.on.startswith("local") else _CLOSE
    return (f"values differ by {farthest:.0e}" if farthest > limit else None), farthest


def ends(swept: Swept) -> list[SweepTrial]:
    """The trials as they ended, by number."""
    return sorted((one for one in swept.trials() if one.has_ended), key=lambda one: one.trial)


def counted(folder: RunFolder) -> dict[str, int]:
    """What a run has trained on: each count must be as without a fault."""
    run: Run = read_run(folder)
    events = atomic_files.read_lines(folder.events, Event)
    return {
        "steps": run.step,
        "samples": run.finished.num_samples_seen if run.finished else 0,
        "validations": len(run.validations),
        "ends": sum(isinstance(line, Finished) for line in events),
    }


def num_starts(folder: RunFolder) -> int:
    """How often a run was started."""
    events = atomic_files.read_lines(folder.events, Event)
    return sum(isinstance(line, Started) for line in events)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--places", default=",".join(PLACES))
    parser.add_argument("--trials", type=int, default=4)
    parser.add_argument(
        "--out", type=Path, default=RESULTS, help="output folder (default: results)"
    )
    options = parser.parse_args()
    options.places = list(dict.fromkeys(options.places.split(",")))
    unknown = [name for name in options.places if name not in PLACES]
    if unknown:
        sys.exit(f"unknown: {', '.join(unknown)}; there are {', '.join(PLACES)}")
    if "ray" in options.places and find_spec("ray") is None:
        sys.exit("`--places ray` needs Ray: pip install ray, or leave it out: --places here")
    if options.trials < 3:
        sys.exit("a sweep needs three trials at least: faults hit the second and the third")
    return options


if __name__ == "__main__":
    sys.exit(main())
