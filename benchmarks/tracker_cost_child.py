"""A process of tracker_cost.py: trains in turns with each tracker; prints each turn as JSON.

python -P tracker_cost_child.py JOB
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from flatout.engine import train
from flatout.engine.experiment import Experiment
from flatout.experiments import mlp, mnist
from flatout.schema.run import Run
from flatout.system.kill_tree import kill_tree
from flatout.system.store.run_folder import RunFolder
from flatout.system.store.tracker_files import positions

# An experiment, and for how many steps it trains at first, unmeasured. Epochs are not so short that
# only their ends count.
EXPERIMENTS: dict[str, tuple[Callable[[], Experiment], int]] = {
    "mlp": (lambda: mlp.experiment(rows=500_000), 5_000),
    "mnist": (mnist.experiment, 200),
}
# Those that must have received everything once the run is over.
WORKING = ("mlflow, files", "wandb, offline")
_LIMIT_S = 120.0


def main() -> None:
    """Trains, and prints milliseconds per step, and the CPUs that the process that sends used."""
    job = json.loads(sys.argv[1])
    make, num_first = EXPERIMENTS[job["model"]]
    first = train(make(), steps=num_first, device="cpu", track="none", is_quiet=True).run
    num_steps = max(1, round(job["seconds"] / step_s(first)))
    ways = list(job["tracks"])
    for turn in range(job["turns"]):
        taken: dict[str, Any] = {}
        shift = (job["shift"] + turn) % len(ways)
        for way in ways[shift:] + ways[:shift]:
            for folder in job["emptied"]:
                empty(Path(folder))
            track = job["tracks"][way]
            run = train(make(), steps=num_steps, device="cpu", track=track, is_quiet=True).run
            sending_s = sum(map(cpu_s, senders()))
            if job["is_first"] and turn == 0 and way in WORKING:
                wait_until_received(run)
            for process in senders():
                kill_tree(process.pid)
                process.wait()
            taken[way] = {"ms": 1000 * step_s(run), "cpus": sending_s / train_s(run)}
        print(json.dumps(taken), flush=True)


def train_s(run: Run) -> float:
    """How long a run has trained."""
    assert run.finished is not None, f"{run.id} is {run.status}"
    return run.finished.train_s


def step_s(run: Run) -> float:
    """How long a step took, with its share of validations and checkpoints."""
    return train_s(run) / run.step


def senders() -> list[psutil.Process]:
    """The processes that send a run of this process to a tracker."""
    found = []
    for one in psutil.Process().children():
        try:
            if "flatout.runs.tracking" in one.cmdline():
                found.append(one)
        except psutil.Error:
            continue
    return found


def cpu_s(process: psutil.Process) -> float:
    """The CPU time of a process and of those that it has started and that still run."""
    times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
    return float(sum(one.user + one.system for one in times))


def wait_until_received(run: Run) -> None:
    """Waits until a tracker has everything of a run."""
    until_s = time.monotonic() + _LIMIT_S
    while True:
        (position,) = positions(RunFolder(Path(run.folder)))
        if position.is_done or time.monotonic() > until_s:
            break
        time.sleep(0.2)
    assert position.is_done and position.finding is None, f"{position.target}: {position}"


def empty(folder: Path) -> None:
    """Removes what is in a folder, if there is one."""
    for path in folder.iterdir() if folder.is_dir() else ():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


if __name__ == "__main__":
    main()
