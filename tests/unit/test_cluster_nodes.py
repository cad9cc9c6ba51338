"""What nodes tell of themselves, and what is made of it before a training starts."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from flatout.cluster.compose.checks import judge_files
from flatout.cluster.compose.node_health import judge_nodes
from flatout.cluster.compose.node_report import NodeQuery, report_on
from flatout.cluster.model.cluster import SHARED_GPU, NodeReport, Port, Service
from flatout.doctor.ruleset import shipped_rules
from flatout.schema.machine import Cpu, Gpu, Machine, Memory

RULESET = shipped_rules()

GIB = 2**30
VERSIONS = {"flatout": "0.1.0", "torch": "2.13.0+cpu", "ray": "2.60.0"}
# Rules of `flatout cluster` alone, told in docs/errors.md; all others have a doctor's page.
OWN_RULES = {
    "cluster-versions-differ", "cluster-clocks-apart", "cluster-runs-as-root",
    "cluster-folder-not-writable", "cluster-published", "cluster-does-not-fit",
    "cluster-without-token", "cluster-shares-gpu",
}  # fmt: skip
MACHINE = Machine(cpu=Cpu(num_threads=8), memory=Memory(total_bytes=16 * GIB), gpus=(Gpu(index=0),))


def node(name: str, **more: Any) -> NodeReport:
    sound = NodeReport(
        node=name, python="3.12.3", versions=VERSIONS,
        asked_s=100.0, began_s=100.0, now_s=100.0, answered_s=100.0,
        shared_bytes=GIB, addresses={"head": "172.18.0.2"}, reached={"head:6379": True},
        interfaces=("lo", "eth0"),
    )  # fmt: skip
    return msgspec.structs.replace(sound, **more)


def rules(*nodes: NodeReport) -> list[str]:
    found = judge_nodes(nodes, "ray")
    assert all(one.fixes for one in found)
    return [one.rule for one in found]


def test_nodes_that_go_together_are_quiet() -> None:
    assert rules(node("head"), node("worker-1"), node("worker-2", began_s=101.0, now_s=101.0)) == []
    assert rules() == []


@pytest.mark.parametrize(
    ("wrong", "rule"),
    [
        ({"versions": {**VERSIONS, "ray": "2.59.0"}}, "ray-version-mismatch"),
        ({"versions": {**VERSIONS, "torch": "2.12.0"}}, "cluster-versions-differ"),
        ({"versions": {**VERSIONS, "flatout": None}}, "cluster-versions-differ"),
        ({"python": "3.11.9"}, "ray-python-version-mismatch"),
        ({"began_s": 108.0, "now_s": 108.0}, "cluster-clocks-apart"),
        ({"addresses": {"head": None}, "reached": {"head:6379": False}},
         "distributed-hostname-resolution"),
        ({"addresses": {"head": "127.0.1.1"}}, "distributed-hostname-resolution"),
        ({"reached": {"head:6379": False}}, "ray-head-unreachable"),
        ({"shared_bytes": 64 * 2**20}, "shm-too-small"),
        ({"variables": {"NCCL_SOCKET_IFNAME": "eno1"}}, "nccl-socket-interface"),
        ({"variables": {"NCCL_SOCKET_IFNAME": "lo"}}, "nccl-socket-interface"),
        ({"variables": {"GLOO_SOCKET_IFNAME": "^eth"}}, "nccl-socket-interface"),
        ({"is_root": True}, "cluster-runs-as-root"),
        ({"unwritable": ("/flatout/runs",)}, "cluster-folder-not-writable"),
    ],
)  # fmt: skip
def test_one_wrong_node_is_named(wrong: dict[str, Any], rule: str) -> None:
    assert rules(node("head"), node("worker-1", **wrong)) == [rule]
    (finding,) = judge_nodes([node("head"), node("worker-1", **wrong)], "ray")
    assert any("worker-1" in str(line) for line in finding.evidence)


def test_slow_answers_are_no_clocks_apart() -> None:
    # One and the same clock: the second node was begun late, the third took long to answer.
    late = node("worker-1", began_s=107.5, now_s=107.6, answered_s=108.0)
    slow = node("worker-2", began_s=100.5, now_s=107.9, answered_s=108.0)
    assert rules(node("head"), late, slow) == []
    ahead = node("worker-3", began_s=119.5, now_s=119.6, answered_s=108.0)
    assert rules(node("head"), late, slow, ahead) == ["cluster-clocks-apart"]


def test_dask_has_rules_of_its_own() -> None:
    versions = {**VERSIONS, "distributed": "2026.8.0", "dask": "2026.8.0"}
    other = {**versions, "distributed": "2026.7.0"}
    found = judge_nodes([node("a", versions=versions), node("b", versions=other)], "dask")
    assert [one.rule for one in found] == ["dask-version-mismatch"]
    lost = judge_nodes([node("a", versions=versions, reached={"head:8786": False})], "dask")
    assert [one.rule for one in lost] == ["dask-scheduler-unreachable"]


@pytest.mark.parametrize("text", ["eth", "=eth0", "eno,eth0", "^lo,docker", "^=lo"])
def test_interfaces_that_lead_out_are_quiet(text: str) -> None:
    assert rules(node("head", variables={"NCCL_SOCKET_IFNAME": text})) == []


@pytest.mark.parametrize("text", ["=eth", "^=eth0", "^"])
def test_interfaces_that_lead_nowhere_are_reported(text: str) -> None:
    wanted = [] if text == "^" else ["nccl-socket-interface"]
    assert rules(node("head", variables={"NCCL_SOCKET_IFNAME": text})) == wanted


def test_every_rule_has_a_page() -> None:
    known = {rule.id for rule in RULESET.rules} | OWN_RULES
    bad = node(
        "b", python="3.11.9", versions={}, now_s=0.0, shared_bytes=0, is_root=True,
        addresses={"head": None, "x": "172.18.0.3"}, reached={"x:1": False},
        variables={"NCCL_SOCKET_IFNAME": "x"}, unwritable=("/x",),
    )  # fmt: skip
    reported = {rule for engine in ("ray", "dask", "torchrun")
            for rule in (one.rule for one in judge_nodes([node("a"), bad], engine))}  # type: ignore[arg-type]  # fmt: skip
    assert reported <= known, reported - known


def test_a_node_answers_about_itself() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        question = NodeQuery(
            node="here", packages=("msgspec", "no-such-package"), names=("localhost", "no.such."),
            places=(f"127.0.0.1:{port}", "127.0.0.1:1"), folders=("/", "/no/such/folder"),
        )  # fmt: skip
        reported = report_on(question)
    assert reported.versions["no-such-package"] is None and reported.versions["msgspec"]
    assert reported.addresses == {"localhost": "127.0.0.1", "no.such.": None}
    assert reported.reached == {f"127.0.0.1:{port}": True, "127.0.0.1:1": False}
    assert "/no/such/folder" in reported.unwritable and reported.num_cpus
    assert 0 < reported.began_s < reported.now_s
    assert reported.python == ".".join(map(str, sys.version_info[:3])) or "+" in sys.version


def test_a_node_is_asked_as_a_program_that_imports_no_framework() -> None:
    text = msgspec.json.encode(NodeQuery(node="n", packages=("torch",))).decode()
    program = "import sys, runpy; sys.argv[1:] = [sys.argv[1]]; " \
        "runpy.run_module('flatout.cluster.compose.node_report', run_name='__main__'); " \
        "assert not {'torch', 'ray', 'numpy'} & set(sys.modules)"  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", program, text], capture_output=True, text=True, timeout=60,
        check=True,
        env={"PYTHONPATH": str(Path(__file__).resolve().parents[2] / "src"), "PATH": ""},
    )  # fmt: skip
    assert msgspec.json.decode(done.stdout, type=NodeReport).node == "n"


def service(name: str = "worker", **more: Any) -> Service:
    sound = Service(
        name=name, user="1000:1000", cpus=2, memory_bytes=GIB, shared_bytes=GIB,
        variables={"RAY_AUTH_MODE": "token"},
    )  # fmt: skip
    return msgspec.structs.replace(sound, **more)


@pytest.mark.parametrize(
    ("wrong", "rule", "severity"),
    [
        ({"ports": (Port(address="0.0.0.0", published=8265, target=8265),)}, "cluster-published",
         "warning"),
        ({"ports": (Port(address="127.0.0.1", published=9000, target=8265),)}, "port-in-use",
         "error"),
        ({"ports": (Port(address="127.0.0.1", published=8265, target=8265),), "variables": {}},
         "cluster-without-token", "warning"),
        ({"ports": (Port(address="127.0.0.1", published=8786, target=8786),)},
         "cluster-without-token", "warning"),
        ({"user": "0:0"}, "cluster-runs-as-root", "warning"),
        ({"is_privileged": True}, "cluster-published", "warning"),
        ({"is_on_host_network": True}, "cluster-published", "warning"),
        ({"cpus": 9.0}, "cluster-does-not-fit", "error"),
        ({"memory_bytes": 20 * GIB}, "cluster-does-not-fit", "warning"),
        ({"num_containers": 17}, "cluster-does-not-fit", "warning"),
        ({"shared_bytes": 64 * 2**20}, "shm-too-small", "warning"),
        ({"is_with_gpu": True, "num_containers": 2}, "nccl-duplicate-gpu", "error"),
    ],
)  # fmt: skip
def test_files_that_ask_for_too_much_are_reported(
    wrong: dict[str, Any], rule: str, severity: str
) -> None:
    (found,) = judge_files([service(**wrong)], MACHINE, {9000})
    assert (found.rule, found.severity) == (rule, severity)
    assert found.fixes and rule in {one.id for one in RULESET.rules} | OWN_RULES


def test_shared_gpus_are_noted_and_counted_once() -> None:
    shared = {"is_with_gpu": True, "variables": {"RAY_AUTH_MODE": "token", SHARED_GPU: "0"}}
    three = [service(name, **shared) for name in ("head", "gpu-0", "gpu-0-2")]
    (found,) = judge_files(three, MACHINE, set())
    assert (found.rule, found.severity) == ("cluster-shares-gpu", "note")
    assert "3 containers share 1 GPU" in found.problem
    # One more than there are is still refused, shared or not.
    for more in (service("gpu-1", is_with_gpu=True), service("gpu-9", is_with_gpu=True,
                 variables={"RAY_AUTH_MODE": "token", SHARED_GPU: "1"})):  # fmt: skip
        rules = {one.rule: one.severity for one in judge_files([*three, more], MACHINE, set())}
        assert rules["nccl-duplicate-gpu"] == "error"


def test_files_that_fit_are_quiet() -> None:
    port = Port(address="127.0.0.1", published=8265, target=8265)
    shared = service("ingestion", profiles=("ingestion",), is_with_gpu=True)
    services = [service("head", ports=(port,)), service("gpu-0", is_with_gpu=True), shared]
    assert judge_files(services, MACHINE, {9000}) == ()
    # What cannot be read is not judged.
    assert judge_files([service()], Machine(), set()) == ()
