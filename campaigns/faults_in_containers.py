"""Faults of machines: Ray in three containers, whose nodes die, starve or lose the network."""

from __future__ import annotations

import contextlib
import re
import socket
import time
from collections.abc import Callable
from dataclasses import replace

from faults_cluster import LOOK_STEP, PORT, Cluster, container_killed, out_of_memory
from faults_runs import AT_STEP, Row, Training, Unexpected, judged, strike

CUT_S = 15.0
SLOW_S = 15.0
# A fiftieth of a core.
_LITTLE_CPU = "0.02"
_NOTICED_S = 120.0
# Nodes miss their head late: there is enough to do until then.
_LONG_S = 0.5
_SOON_STEP = 60
_OTHER_VERSION = """
import importlib.metadata, re
file = importlib.metadata.distribution("flatout")._path / "METADATA"
file.write_text(re.sub("(?m)^Version: .*", "Version: 9.9.9", file.read_text()))
"""


def faults() -> dict[str, Callable[[Cluster], Row]]:
    """The faults that can be injected there, by name."""
    return {
        "container of rank 1 killed": lambda runs: container_killed(runs, 1),
        "container of rank 0 killed": lambda runs: container_killed(runs, 0),
        "network of rank 1 cut": lambda runs: network_cut(runs, 1),
        "network of rank 0 cut": lambda runs: network_cut(runs, 0),
        f"network cut for {CUT_S:.0f} s": network_cut_and_back,
        "container out of memory": out_of_memory,
        f"container without CPU {SLOW_S:.0f} s": starved,
        "head killed": head_killed,
        "node whose name does not resolve": name_lost,
        "node with another version": other_version,
        "port of the head in use": port_taken,
    }


def network_cut(runs: Cluster, rank: int) -> Row:
    """`docker network disconnect`; `connect` once the run has ended without that node."""
    training = runs.begin(f"cut-{rank}", on="cluster")
    training.wait_for_step(LOOK_STEP)
    name = runs.worker_of(rank)
    blow = strike(training, AT_STEP, lambda: _cut(runs, name))
    try:
        training.end()
    finally:
        _join(runs, name)
        _await_end(runs, name)
    return judged(f"network of rank {rank} cut", training, runs.reference(), blow)


def network_cut_and_back(runs: Cluster) -> Row:
    """The same, but connected again after a while."""
    training = runs.begin("cut-briefly", on="cluster")
    training.wait_for_step(LOOK_STEP)
    name = runs.worker_of(1)

    def cut() -> None:
        _cut(runs, name)
        time.sleep(CUT_S)
        _join(runs, name)

    blow = strike(training, AT_STEP, cut)
    training.end()
    return judged(f"network cut for {CUT_S:.0f} s", training, runs.reference(), blow)


def _cut(runs: Cluster, name: str) -> None:
    runs.docker.must("network", "disconnect", runs.nodes.project, name)


def _join(runs: Cluster, name: str) -> None:
    runs.docker.must("network", "connect", "--alias", "worker", runs.nodes.project, name)


def _await_end(runs: Cluster, name: str) -> None:
    """Waits until a node notices that Ray has dropped it: then it can be started again."""
    until_s = time.monotonic() + _NOTICED_S
    state = "true"
    while state == "true" and time.monotonic() < until_s:
        time.sleep(1.0)
        state = runs.docker.must("inspect", "--format", "{{.State.Running}}", name).strip()


def starved(runs: Cluster) -> Row:
    """`docker update --cpus`: the node gets almost no CPU time, then all of it again."""
    training = runs.begin("starved-of-cpu")
    training.wait_for_step(LOOK_STEP)
    name = runs.worker_of(1)

    def starve() -> None:
        runs.docker.must("update", "--cpus", _LITTLE_CPU, name)
        time.sleep(SLOW_S)
        runs.docker.must("update", "--cpus", "2", name)

    blow = strike(training, AT_STEP, starve)
    training.end()
    return judged(f"container without CPU {SLOW_S:.0f} s", training, runs.reference(), blow)


def head_killed(runs: Cluster) -> Row:
    """`docker kill` of the head; then `flatout cluster up`, and the run is resumed."""
    training = runs.begin("headless", f"pause={_LONG_S}")
    head = runs.names["head", 1]
    blow = strike(training, _SOON_STEP, lambda: runs.docker.must("kill", head))
    code = training.wait()
    if code != 1 or "ray-not-answering" not in training.output():
        raise Unexpected(f"ended with {code}: {training.output()[-1500:]}")
    again = _taken_up_again(runs, "headless")
    row = judged("head killed", again, runs.reference(), blow)
    return replace(row, reported=f"ray-not-answering, {row.reported} (up, --resume)")


def _taken_up_again(runs: Cluster, name: str) -> Training:
    """Brings the cluster up and resumes the run, retrying while that is refused."""
    until_s = time.monotonic() + 300.0
    while True:
        with contextlib.suppress(AssertionError):
            runs.up()
            again = runs.resume(name)
            if again.wait() == 0:
                return again
        if time.monotonic() > until_s:
            raise Unexpected(f"could not be resumed: {again.output()[-1500:]}")
        time.sleep(2.0)


def name_lost(runs: Cluster) -> Row:
    """A node is on no network when a training starts."""
    name = runs.names["worker", 2]
    _cut(runs, name)
    try:
        row = _refused(runs, "node whose name does not resolve")
    finally:
        _join(runs, name)
    _restart(runs, name)
    return row


def other_version(runs: Cluster) -> Row:
    """A node whose flatout reports another version."""
    name = runs.names["worker", 2]
    runs.docker.must("exec", "--user", "0", name, "python3", "-c", _OTHER_VERSION)
    try:
        return _refused(runs, "node with another version")
    finally:
        runs.docker.must("rm", "--force", name)
        runs.up()


def port_taken(runs: Cluster) -> Row:
    """Another program listens on the port that the head's port is published on."""
    runs.nodes.flatout("cluster", "down")
    began_s = time.monotonic()
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", PORT))
        other.listen()
        done = runs.nodes.flatout("cluster", "up")
        reported_s = time.monotonic() - began_s
    runs.up()
    rule = _rule_in(done.stdout + done.stderr)
    problem = None if done.returncode == 2 else f"ended with {done.returncode}: {done.stderr}"
    return Row(fault="port of the head in use", reported=f"refused before the start: {rule}",
               lost_s=reported_s, problem=problem)  # fmt: skip


def _refused(runs: Cluster, fault: str) -> Row:
    """A training that is refused before the run is created."""
    began_s = time.monotonic()
    training = runs.begin("refused")
    code = training.wait()
    reported_s = time.monotonic() - began_s
    problem = None if code == 2 else f"ended with {code}: {training.output()[-1000:]}"
    if training.folder.path.exists():
        problem = "the run was created anyway"
    reported = f"refused before the start: {_rule_in(training.output())}"
    return Row(fault=fault, reported=reported, lost_s=reported_s, problem=problem)


def _rule_in(text: str) -> str:
    found = re.findall(r"see: ([a-z0-9-]+)", text)
    return found[-1] if found else "?"


def _restart(runs: Cluster, name: str) -> None:
    """Restarts a node, whose own programs may have exited."""
    runs.docker.must("restart", name)
    runs.up()
