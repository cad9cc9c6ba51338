"""Faults of machines with launchers of their own: torchrun in each of two containers.

Only the kernel and flatout watch their memory and their ranks.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from faults_cluster import LOOK_STEP, Cluster, container_killed, out_of_memory
from faults_runs import (
    AT_STEP,
    STILL_LIMIT_S,
    STILL_S,
    Row,
    Unexpected,
    filled_up,
    judged,
    limited,
    strike,
    taken_up,
    wait_until_left,
)
from support.small_disk import can_be_mounted

_OVER = f"over {STILL_LIMIT_S:.0f} s"


def faults() -> dict[str, Callable[[Cluster], Row]]:
    """The faults that can be injected there, by name."""
    found: dict[str, Callable[[Cluster], Row]] = {
        "container of rank 1 killed": lambda runs: container_killed(runs, 1),
        "container out of memory": out_of_memory,
        f"rank 1 stopped for {STILL_S:.0f} s": straggler,
        f"rank 1 stopped for {_OVER}": hung,
        f"container of rank 1 paused {_OVER}": second_paused,
        f"container of rank 0 paused {_OVER}": first_paused,
    }
    if can_be_mounted():
        found["disk full"] = disk_full
    return found


def faults_on_dask() -> dict[str, Callable[[Cluster], Row]]:
    """Ranks start as with torchrun, but Dask handles a lost worker."""
    return {"container of rank 1 killed": lambda runs: container_killed(runs, 1)}


def straggler(runs: Cluster) -> Row:
    """SIGSTOP to a rank in its container, and SIGCONT a while later."""
    training = runs.begin("slow")
    training.wait_for_step(LOOK_STEP)
    name = runs.worker_of(1)

    def stand_still() -> None:
        runs.signal(name, 1, "STOP")
        time.sleep(STILL_S)
        runs.signal(name, 1, "CONT")

    blow = strike(training, AT_STEP, stand_still)
    training.end()
    return judged(f"rank 1 stopped for {STILL_S:.0f} s", training, runs.reference(), blow)


def hung(runs: Cluster) -> Row:
    """SIGSTOP to a rank, for longer than the timeout of ranks."""
    training = limited(runs).begin("hung")
    training.wait_for_step(LOOK_STEP)
    name = runs.worker_of(1)
    blow = strike(training, AT_STEP, lambda: runs.signal(name, 1, "STOP"))
    training.end()
    return judged(f"rank 1 stopped for {_OVER}", training, runs.reference(), blow)


def second_paused(runs: Cluster) -> Row:
    """`docker pause`; the remaining container continues, and the other wakes up later."""
    training = limited(runs).begin("paused-1", on="cluster")
    training.wait_for_step(LOOK_STEP)
    name = runs.worker_of(1)
    blow = strike(training, AT_STEP, lambda: runs.docker.must("pause", name))
    try:
        training.end()
    finally:
        runs.docker.must("unpause", name)
    return judged(f"container of rank 1 paused {_OVER}", training, runs.reference(), blow)


def first_paused(runs: Cluster) -> Row:
    """The same to the only writer: no one else writes until it has woken up and exited."""
    training = limited(runs).begin("paused-0", on="cluster")
    training.wait_for_step(LOOK_STEP)
    name = runs.worker_of(0)
    blow = strike(training, AT_STEP, lambda: runs.docker.must("pause", name))
    try:
        code = training.wait()
    finally:
        runs.docker.must("unpause", name)
    if code != 1 or "run-in-use" not in training.output():
        raise Unexpected(f"ended with {code}: {training.output()[-1500:]}")
    wait_until_left(training.folder)
    again = runs.resume("paused-0", on="cluster")
    row = taken_up(f"container of rank 0 paused {_OVER}", again, runs.reference(), blow)
    return replace(row, reported=f"run-in-use while it is paused; {row.reported}")


def disk_full(runs: Cluster) -> Row:
    """Another file fills the disk of the cluster's runs, and is removed again."""
    return filled_up(runs, runs.begin("cramped"), runs.state / "other", runs.reference())
