"""A script on several nodes: what each is told, and how all of them end."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from support.busy_machine import has_ended, wait_until

from flatout.cluster.local_launch import launch
from flatout.cluster.node_processes import NodeCommand, NodeProcesses, free_addresses
from flatout.errors import FlatoutError, RunFailed, UsageError
from flatout.schema.script_launch import (
    LaunchRequest,
    NodeAddresses,
    NodeEnded,
    NodeEvent,
    NodeSaid,
    NodesStarted,
    computing,
    rendezvous,
)
from flatout.system import clock

PLACES = [NodeAddresses("one", (1001, 2001)), NodeAddresses("two", (1002, 2002))]

TOLD = """
from os import environ
print("I am", environ["NODE_RANK"], "of", environ["NNODES"], environ.get("GLOO_SOCKET_IFNAME"))
"""
LOOPBACK = {"win32": None, "darwin": "lo0"}.get(sys.platform, "lo")
# Node 1 fails once node 0 is there; node 0 would wait for ever.
ONE_FAILS = """
import os, pathlib, sys, time
there = pathlib.Path(sys.argv[1])
if os.environ["NODE_RANK"] == "0":
    there.touch()
    time.sleep(600)
while not there.exists():
    time.sleep(0.05)
print("about to fail")
sys.exit("no such batch")
"""
# What it has started must not outlive it.
LEAVES_A_CHILD = """
import pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path(sys.argv[1]).write_text(str(child.pid))
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path / "state"))


def request(folder: Path, text: str, *arguments: str, **options: object) -> LaunchRequest:
    script = folder / "script.py"
    script.write_text(text)
    given = {"framework": "torch", "nodes": 2, **options}
    return LaunchRequest(script=str(script), arguments=arguments, **given)  # type: ignore[arg-type]


def failure_of(asked: LaunchRequest, events: list[NodeEvent]) -> FlatoutError:
    with pytest.raises(FlatoutError) as caught:
        events.extend(launch(asked))
    return caught.value


def test_every_node_is_reported_who_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    events = list(launch(request(tmp_path, TOLD, nodes=3)))
    started, *rest = events
    assert isinstance(started, NodesStarted)
    said = sorted(one.text for one in rest if isinstance(one, NodeSaid))
    assert said == [f"I am {node} of 3 {LOOPBACK}" for node in range(3)]
    ended = [one for one in rest if isinstance(one, NodeEnded)]
    assert sorted((one.node, one.exit_code) for one in ended) == [(0, 0), (1, 0), (2, 0)]
    for one in ended:
        assert Path(one.log).read_text() == f"I am {one.node} of 3 {LOOPBACK}\n"
    assert Path(started.folder).name == "script-0001"


def test_arguments_and_logs_go_where_they_are_sent(tmp_path: Path) -> None:
    asked = request(
        tmp_path, "import sys; print(sys.argv[1:])", "--lr", "3", logs=str(tmp_path / "logs")
    )
    said = [one.text for one in launch(asked) if isinstance(one, NodeSaid)]
    assert said == ["['--lr', '3']"] * 2
    assert (tmp_path / "logs/node1.log").read_text() == "['--lr', '3']\n"


def test_one_node_fails_and_all_are_ended(tmp_path: Path) -> None:
    events: list[NodeEvent] = []
    began_s = clock.elapsed_s()
    error = failure_of(request(tmp_path, ONE_FAILS, str(tmp_path / "there")), events)
    assert clock.elapsed_s() - began_s < 60
    assert isinstance(error, RunFailed)
    assert error.rule == "node-failed"
    assert error.problem == "node 1 ended with exit code 1; the others were stopped."
    assert error.because == "no such batch"
    assert "about to fail" in error.printed
    ended = {one.node: one for one in events if isinstance(one, NodeEnded)}
    assert not ended[1].is_ours
    assert ended[0].is_ours
    assert ended[0].exit_code != 0


def test_limit_ends_all_nodes(tmp_path: Path) -> None:
    error = failure_of(request(tmp_path, "import time; time.sleep(600)", limit_s=1.0), [])
    assert error.rule == "launch-too-long"


def test_end_of_the_block_ends_what_a_node_has_started(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text(LEAVES_A_CHILD)
    reported = tmp_path / "child"
    with NodeProcesses(
        [NodeCommand(argv=(sys.executable, str(tmp_path / "s.py"), str(reported)))],
        tmp_path / "logs",
    ):
        wait_until(lambda: reported.exists() and reported.read_text())
    child = int(reported.read_text())
    wait_until(lambda: has_ended(child))


def test_none_runs_where_one_cannot_be_started(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        NodeProcesses([NodeCommand(argv=(str(tmp_path / "none"),))] * 2, tmp_path / "logs")
    assert caught.value.rule == "script-not-started"


def test_script_that_is_not_there(tmp_path: Path) -> None:
    asked = LaunchRequest(framework="torch", nodes=2, script=str(tmp_path / "none.py"))
    assert failure_of(asked, []).rule == "script-not-found"


def test_tensorflow_is_reported_all_workers_and_its_own_place() -> None:
    reported = rendezvous("tensorflow", PLACES)
    assert [json.loads(one["TF_CONFIG"]) for one in reported] == [
        {
            "cluster": {"worker": ["one:1001", "two:1002"]},
            "task": {"type": "worker", "index": node},
        }
        for node in range(2)
    ]


def test_paddle_is_reported_its_endpoint_among_all() -> None:
    reported = rendezvous("paddle", PLACES)
    assert [one["PADDLE_TRAINER_ID"] for one in reported] == ["0", "1"]
    assert [one["PADDLE_CURRENT_ENDPOINT"] for one in reported] == ["one:2001", "two:2002"]
    for one in reported:
        assert one["PADDLE_MASTER"] == "one:1001"
        assert one["PADDLE_TRAINER_ENDPOINTS"] == "one:2001,two:2002"


def test_torch_is_reported_ranks_as_torchrun_tells_them() -> None:
    reported = rendezvous("torch", PLACES)
    assert [one["RANK"] for one in reported] == ["0", "1"]
    for one in reported:
        assert (one["MASTER_ADDR"], one["MASTER_PORT"]) == ("one", "1001")
        assert (one["WORLD_SIZE"], one["NNODES"], one["LOCAL_RANK"]) == ("2", "2", "0")


def test_nodes_have_a_gpu_of_their_own_or_none() -> None:
    assert computing("torch", 1, 4)["CUDA_VISIBLE_DEVICES"] == "1"
    assert computing("torch", None, 4) == {"OMP_NUM_THREADS": "4", "CUDA_VISIBLE_DEVICES": "-1"}
    assert computing("paddle", None, 4)["PADDLE_DISTRI_BACKEND"] == "gloo"
    assert "PADDLE_DISTRI_BACKEND" not in computing("paddle", 0, 4)


def test_ports_are_free_and_different() -> None:
    ports = [port for place in free_addresses("127.0.0.1", 3) for port in place.ports]
    assert len(set(ports)) == 6


@pytest.mark.skipif(os.name == "nt", reason="Windows has no signals that end a process")
def test_node_that_is_killed_is_reported_as_such(tmp_path: Path) -> None:
    text = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    error = failure_of(request(tmp_path, text, nodes=1), [])
    assert "was killed by SIGKILL" in error.problem
    assert error.because == "it printed nothing"
