"""What is cleaned away after tests with containers: all that is theirs, and nothing of others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import docker_engine
import pytest
from containers import KEPT, LABEL, Docker, clean_all
from progress import Problem
from support.container_cluster import ContainerCluster

PROJECT = "com.docker.compose.project"


class Engine(Docker):
    """An engine that holds these things: kind, id, name and labels of each."""

    def __init__(self, *held: tuple[str, str, str, dict[str, str]]) -> None:
        super().__init__("docker", owner="here:1")
        self.held = list(held)

    def ask(self, *words: str, limit_s: float = 300.0) -> subprocess.CompletedProcess[str]:
        kind, verb, *rest = words
        if verb == "rm":
            self.held = [one for one in self.held if one[0] != kind or one[1] not in rest]
            return subprocess.CompletedProcess(words, 0, "", "")
        assert verb == "ls"
        wanted, _, value = rest[rest.index("--filter") + 1].partition("=")
        found = [one for one in self.held if one[0] == kind and is_wanted(one, wanted, value)]
        reported = [one[3][PROJECT] if "--format" in rest else one[1] for one in found]
        return subprocess.CompletedProcess(words, 0, "\n".join(reported), "")


def is_wanted(one: tuple[str, str, str, dict[str, str]], filter: str, value: str) -> bool:
    if filter == "reference":
        return one[2].startswith(value.removesuffix("*"))
    name, _, text = value.partition("=")
    return name in one[3] and (not text or one[3][name] == text)


def test_clean_removes_what_tests_have_made_and_nothing_else(tmp_path: Path) -> None:
    of_benchmark = ContainerCluster(tmp_path, "ray", "mnist-ray").project
    kept = dict([KEPT.split("=")])
    others = [
        ("image", "i1", "python:3.12", {}),
        ("image", "i2", "", {}),
        ("container", "c1", "shop_db_1", {PROJECT: "shop"}),
        ("volume", "v1", "shop_data", {PROJECT: "shop"}),
        ("network", "n1", "flatout-lab", {PROJECT: "flatout-lab"}),
    ]
    engine = Engine(
        *others,
        ("image", "i3", "flatout-test-base:bookworm", {}),
        ("image", "i4", "flatout-test-ray", kept),
        # The stage in which an image's packages were installed has no name.
        ("image", "i5", "", kept),
        ("container", "c2", "flatout-test-77-1", {LABEL: "here:77"}),
        ("container", "c3", "flatout-test-ray_head_1", {PROJECT: "flatout-test-ray"}),
        ("container", "c4", f"{of_benchmark}_head_1", {PROJECT: of_benchmark}),
        ("network", "n2", "flatout-test-ray", {PROJECT: "flatout-test-ray"}),
        ("volume", "v2", "flatout-test-dask_cache", {PROJECT: "flatout-test-dask"}),
    )
    clean_all(engine)
    assert engine.held == others


@pytest.mark.skipif(sys.platform == "win32", reason="no containers are made there")
def test_a_process_that_prepares_containers_is_waited_for_aloud_and_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(docker_engine, "_SAID_EVERY_S", 0.0)
    monkeypatch.setattr(docker_engine, "_OTHERS_S", 0.3)
    with (
        docker_engine.one_at_a_time(tmp_path),
        pytest.raises(Problem, match="another process holds"),
        docker_engine.one_at_a_time(tmp_path),
    ):
        raise AssertionError
    assert "waiting for another process" in capsys.readouterr().out
    with docker_engine.one_at_a_time(tmp_path):
        pass
