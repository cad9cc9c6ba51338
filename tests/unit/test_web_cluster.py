"""The page of a cluster, whatever Docker says."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from support.web_runs import MACHINE

from flatout.cluster.model.cluster import LOST, ClusterState, Container, Dashboard, NodeReport
from flatout.doctor.model.diagnosis import Diagnosis, Examined
from flatout.errors import RunFailed
from flatout.web.application import application
from flatout.web.background_query import BackgroundQuery, cluster_here, machine_health
from flatout.web.gate import GateRules
from flatout.web.page import PageContext
from flatout.web.run_cache import RunCache

STATE = ClusterState(
    name="lab", folder="/home/ann/cluster", engine="dask",
    containers=(
        Container(id="1", name="lab-scheduler-1", service="scheduler", number=1, state="running",
                  health="healthy", cpus=2.0, memory_bytes=4 << 30),
        Container(id="2", name="lab-worker-1", service="worker", number=1, state="running",
                  health=LOST),
        Container(id="3", name="lab-worker-2", service="worker", number=2, state="exited"),
    ),
    nodes=(NodeReport(node="scheduler-1", python="3.12.1", versions={"dask": "2026.1"}),),
    dashboards=(Dashboard(text="Dask's dashboard", address="http://127.0.0.1:8787"),
                Dashboard(text="Dask's scheduler", address="tcp://127.0.0.1:8786")),
    unread={"lab-worker-1": "no <answer>"},
)  # fmt: skip


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def shown(watch: BackgroundQuery[ClusterState]) -> TestClient:
    """A browser, once the cluster has been asked."""
    while watch.latest().at is None:
        threading.Event().wait(0.01)
    health = machine_health(lambda: Examined(machine=MACHINE, diagnosis=Diagnosis()))
    context = PageContext(runs=RunCache(), health=health, cluster=watch)
    app = application(context, GateRules(names=frozenset({"localhost"})))
    return TestClient(app, base_url="http://localhost")


def test_cluster_shows_nodes_roles_health_and_dashboards() -> None:
    client = shown(cluster_here(lambda: STATE))
    nodes = client.get("/cluster.json").json()["nodes"]
    assert [(node["name"], node["is_head"], node["health"]) for node in nodes] == [
        ("scheduler-1", True, "healthy"), ("worker-1", False, "lost"),
        ("worker-2", False, "exited"),
    ]  # fmt: skip
    assert nodes[1]["num_gpus"] is None
    text = client.get("/cluster").text
    assert 'href="http://127.0.0.1:8787"' in text and 'href="tcp' not in text
    assert "4.0 GiB" in text and "no &lt;answer&gt;" in text and "2026.1" in text


def test_cluster_when_there_is_none() -> None:
    text = shown(cluster_here()).get("/cluster").text
    assert "flatout cluster init" in text


def test_cluster_when_docker_fails() -> None:
    def ask() -> ClusterState:
        raise RunFailed("docker-failed", "Docker does not answer.", fix="start it")

    assert "Docker does not answer." in shown(cluster_here(ask)).get("/cluster").text


def test_cluster_is_not_waited_for() -> None:
    answered = threading.Event()

    def ask() -> ClusterState:
        answered.wait(120)
        return STATE

    watch = cluster_here(ask)
    assert watch.latest().at is None and watch.latest().value is None
    answered.set()
    assert "lab" in shown(watch).get("/cluster").text
