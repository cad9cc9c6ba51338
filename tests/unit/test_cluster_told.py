"""What Docker and Compose say, read from recordings; and the verbs over a recorded machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.cluster import containers, files
from flatout.cluster.compose import docker
from flatout.cluster.compose.docker_output import parse_containers, parse_services, parse_size
from flatout.cluster.compose.node_report import NodeQuery
from flatout.cluster.model.cluster import Container, NodeReport, Port
from flatout.errors import RunFailed, UsageError
from flatout.system.host_system import Calls, Completed, RecordedSystem, SystemRecording

CASES = Path(__file__).resolve().parents[1] / "cases" / "cluster"
INSPECTED = (CASES / "inspect.json").read_text(encoding="utf-8")
V2 = (CASES / "config-v2.json").read_text(encoding="utf-8")
LABEL = "label=com.docker.compose.project=flatout-lab"
REPORT = NodeReport(
    node="x", python="3.12.3", versions={"flatout": "0.1.0", "torch": "2.13.0", "ray": "2.60.0"},
    shared_bytes=2**30, addresses={"head": "172.20.0.2"}, reached={"head:6379": True},
    interfaces=("lo", "eth0"),
)  # fmt: skip


def reported(stdout: str = "", stderr: str = "", exit_code: int = 0) -> Completed:
    return Completed(stdout=stdout, stderr=stderr, exit_code=exit_code)


def folder(tmp_path: Path, **settings: str) -> files.Folder:
    return files.Folder(
        path=tmp_path,
        settings={
            "COMPOSE_PROJECT_NAME": "flatout-lab", "CLUSTER_ENGINE": "ray",
            "CLUSTER_RUNS": "runs", "CLUSTER_DATA": "data",
            # Nobody's.
            "CLUSTER_DASHBOARD_PORT": "1", **settings,
        },
    )  # fmt: skip


def config_words(tmp_path: Path) -> tuple[str, ...]:
    """How Compose v2 is asked for a folder's services."""
    program = docker.Compose(words=("docker", "compose"), version="2.29.0", docker="27.0")
    profiles = ("--profile", "ingestion", "--profile", "training", "--profile", "inference")
    return tuple(program.argv(tmp_path, *profiles, "config", "--format", "json"))


def machine(commands: dict[tuple[str, ...], Completed]) -> RecordedSystem:
    """A Linux on which these programs answer, and whose port 8265 is taken."""
    return RecordedSystem(
        SystemRecording(
            platform="linux", calls=Calls(python_version="3.12.3", num_threads=8),
            commands=tuple(commands.items()), ports=(22, 8265),
        )
    )  # fmt: skip


def machine_with(
    tmp_path: Path, more: dict[tuple[str, ...], Completed] | None = None
) -> RecordedSystem:
    """A machine with Compose v2 on which the recorded containers run; `more` wins."""
    ids = [one.id for one in parse_containers(INSPECTED)]
    commands: dict[tuple[str, ...], Completed] = {
        ("docker", "version"): reported("27.0\n"),
        ("docker", "compose", "version", "--short"): reported("2.29.0\n"),
        config_words(tmp_path): reported(V2),
        ("docker", "ps"): reported("\n".join(ids)),
        ("docker", "inspect"): reported(INSPECTED),
        ("docker", "exec"): reported(msgspec.json.encode(REPORT).decode()),
    }
    return machine({**commands, **(more or {})})


def test_containers_are_read_from_a_recording() -> None:
    found = parse_containers(INSPECTED)
    assert [(one.service, one.number) for one in found] == [
        ("head", 1), ("worker", 1), ("worker", 2),
    ]  # fmt: skip
    head, worker = found[:2]
    assert head.ports == (Port(address="127.0.0.1", published=8265, target=8265),)
    assert head.ports[0].is_private and worker.ports == ()
    assert (worker.cpus, worker.memory_bytes, worker.user) == (1.0, 3 * 2**30, "1000:1000")
    assert worker.address == "172.20.0.3" and worker.is_well and not worker.has_ended


def test_containers_that_ended_tell_how() -> None:
    rows = json.loads(INSPECTED)
    rows[0]["State"] |= {"Status": "exited", "ExitCode": 137, "OOMKilled": True}
    rows[1]["State"]["Health"]["Status"] = "starting"
    by_place = {(one.service, one.number): one for one in parse_containers(json.dumps(rows))}
    assert by_place["worker", 2].exit_code == 137 and by_place["worker", 2].is_out_of_memory
    assert by_place["worker", 2].has_ended and not by_place["worker", 1].is_well
    # What was started for one command is none of the cluster's nodes.
    rows[2]["Config"]["Labels"]["com.docker.compose.oneoff"] = "True"
    assert len(parse_containers(json.dumps(rows))) == 2


@pytest.mark.parametrize("text", ["[1]", "{", '[{"Name": "x"}]', "null"])
def test_containers_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_containers(text)


def test_services_of_v1_and_v2_are_read_alike() -> None:
    yaml = pytest.importorskip("yaml", reason="needs PyYAML")
    v1 = {one.name: one for one in parse_services(
        yaml.safe_load((CASES / "config-v1.yaml").read_text(encoding="utf-8")))}  # fmt: skip
    v2 = {one.name: one for one in parse_services(json.loads(V2))}
    for name in ("head", "worker", "ingestion"):
        assert v1[name] == v2[name]
    assert v2["worker"].num_containers == 2 and v2["gpu-0"].is_with_gpu
    assert v2["head"].ports[0].is_private and v2["ingestion"].profiles == ("ingestion",)


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [("2048m", 2**31), ("2147483648", 2**31), (2**31, 2**31), ("1.5g", 3 * 2**29), ("64M", 2**26),
     ("1gb", 2**30), ("1GiB", 2**30), (None, None), ("much", None), ("", None)],
)  # fmt: skip
def test_sizes_are_read(text: Any, num_bytes: int | None) -> None:
    assert parse_size(text) == num_bytes


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(
        st.sampled_from(["services", "ports", "deploy", "cpus", "scale", "a"]), inner),
))  # fmt: skip
def test_whatever_a_file_says_is_read_or_refused(document: Any) -> None:
    try:
        found = parse_services(document)
    except ValueError:
        return
    # Each has the name that it has in the file, once.
    assert {one.name for one in found} <= set(document["services"])
    assert len({one.name for one in found}) == len(found)


def test_state_is_of_all_nodes(tmp_path: Path) -> None:
    state = containers.state(folder(tmp_path), machine_with(tmp_path))
    assert len(state.containers) == len(state.nodes) == 3 and state.findings == ()
    assert [one.address for one in state.dashboards] == ["http://127.0.0.1:1"]


def test_a_node_that_tells_nothing_is_named_with_why(tmp_path: Path) -> None:
    system = machine_with(
        tmp_path, {("docker", "exec"): reported(stderr="no such module\n", exit_code=1)}
    )
    state = containers.state(folder(tmp_path), system)
    silent = {name: why for name, why in state.unread.items() if name != "Ray"}
    assert state.nodes == () and set(silent.values()) == {"no such module"}
    strange = machine_with(tmp_path, {("docker", "exec"): reported("hello")})
    why = docker.query_node("x", NodeQuery(node="x"), strange)
    assert isinstance(why, str) and "another version of flatout" in why


def test_check_passes_where_our_own_containers_hold_the_port(tmp_path: Path) -> None:
    checked = files.check(folder(tmp_path), machine_with(tmp_path))
    assert "docker" in checked.passed and checked.passed["ports"] == "127.0.0.1:8265"
    # One thing is wrong: this file asks for a GPU, and there is none.
    assert [one.rule for one in checked.findings] == ["nccl-duplicate-gpu"]


def test_check_tells_a_port_that_others_hold(tmp_path: Path) -> None:
    system = machine_with(tmp_path, {("docker", "ps"): reported("")})
    rules = [one.rule for one in files.check(folder(tmp_path), system).findings]
    assert rules == ["port-in-use", "nccl-duplicate-gpu"]


def test_check_tells_what_compose_refuses(tmp_path: Path) -> None:
    wrong = reported(stderr="services.worker Additional property spu is not allowed", exit_code=15)
    system = machine_with(tmp_path, {config_words(tmp_path): wrong})
    (finding,) = files.check(folder(tmp_path), system).findings
    assert finding.rule == "compose-file-refused" and "spu" in (finding.because or "")


@pytest.mark.parametrize(
    ("commands", "rule"),
    [
        ({}, "docker-not-answering"),
        ({("docker", "version"): reported(stderr="permission denied", exit_code=1)},
         "docker-not-answering"),
        ({("docker", "version"): reported("27.0")}, "compose-missing"),
        ({("docker", "version"): reported("20.10"), ("docker-compose",): reported("1.25.0\n")},
         "compose-missing"),
    ],
)  # fmt: skip
def test_no_compose_is_reported(commands: dict[tuple[str, ...], Completed], rule: str) -> None:
    system = machine(commands)
    with pytest.raises(UsageError) as bad:
        docker.find_compose(system)
    assert bad.value.rule == rule


def test_compose_v1_is_taken_where_there_is_no_other() -> None:
    system = machine(
        {("docker", "version"): reported("20.10.24"), ("docker-compose",): reported("1.29.2")}
    )
    found = docker.find_compose(system)
    assert found.is_v1 and found.argv(Path("/lab"), "up")[0] == "docker-compose"


def test_a_folder_that_is_not_named_is_refused_everywhere(tmp_path: Path) -> None:
    for text in ("CLUSTER_RUNS", "CLUSTER_DATA"):
        made = folder(tmp_path, **{text: ""})
        for ask in (files.check, lambda made, _: made.inside(tmp_path / "elsewhere")):
            with pytest.raises(UsageError, match=f"{text} in .env does not name a folder") as bad:
                ask(made, machine_with(tmp_path))
            assert bad.value.rule == "bad-cluster-setting"


def test_waiting_ends_with_what_the_first_that_failed_has_said(tmp_path: Path) -> None:
    rows = json.loads(INSPECTED)
    rows[0]["State"] |= {"Status": "exited", "ExitCode": 1}
    system = machine_with(
        tmp_path,
        {
            ("docker", "inspect"): reported(json.dumps(rows)),
            ("docker", "logs"): reported(stderr="starting\nConnectionError: no head\n"),
        },
    )
    seen: list[int] = []

    def on_wait(found: Any) -> None:
        seen.append(len(found))

    with pytest.raises(RunFailed, match="flatout-lab_worker_2 is not healthy") as bad:
        containers.wait_until_well(folder(tmp_path), system, limit_s=60.0, on_wait=on_wait)
    assert "exit code 1; " in str(bad.value) and "no head" in str(bad.value) and seen == [3]


def test_waiting_has_a_limit(tmp_path: Path) -> None:
    rows = json.loads(INSPECTED)
    rows[0]["State"]["Health"]["Status"] = "starting"
    system = machine_with(tmp_path, {("docker", "inspect"): reported(json.dumps(rows))})
    with pytest.raises(RunFailed, match="it is starting after"):
        containers.wait_until_well(folder(tmp_path), system, limit_s=0.0, on_wait=_ignore)


def _ignore(found: Any) -> None:
    assert all(isinstance(one, Container) for one in found)


def test_a_training_wants_a_cluster_that_is_up_and_of_one_version(tmp_path: Path) -> None:
    containers.require_well(folder(tmp_path), machine_with(tmp_path))
    with pytest.raises(UsageError, match="is not running") as reported_of:
        containers.require_well(
            folder(tmp_path), machine_with(tmp_path, {("docker", "ps"): reported("")})
        )
    assert reported_of.value.rule == "cluster-not-up"
    old = msgspec.structs.replace(REPORT, versions={**REPORT.versions, "flatout": "0.0.9"})
    answer = reported(msgspec.json.encode(old).decode())
    with pytest.raises(UsageError, match="the nodes have flatout 0.0.9"):
        containers.require_well(
            folder(tmp_path), machine_with(tmp_path, {("docker", "exec"): answer})
        )
    small = msgspec.structs.replace(REPORT, shared_bytes=2**20)
    answer = reported(msgspec.json.encode(small).decode())
    with pytest.raises(UsageError, match="/dev/shm, is too small"):
        containers.require_well(
            folder(tmp_path), machine_with(tmp_path, {("docker", "exec"): answer})
        )
