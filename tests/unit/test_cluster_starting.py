"""Containers that are started, and started again: those that end meanwhile, or that Ray gave up."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest

from flatout import __version__
from flatout.cluster import containers, ray_jobs, train
from flatout.cluster.files import Folder
from flatout.cluster.model.cluster import NodeReport
from flatout.cluster.ray_jobs import RayHead
from flatout.errors import RunFailed, UsageError
from flatout.schema.experiment_spec import SweepRun
from flatout.schema.finding import Finding
from flatout.schema.placement import parse_placement
from flatout.schema.train_request import TrainRequest
from flatout.system.host_system import Calls, Completed, RecordedSystem, SystemRecording

INSPECTED = (Path(__file__).resolve().parents[1] / "cases/cluster/inspect.json").read_text(
    encoding="utf-8"
)
REPORT = msgspec.json.encode(
    NodeReport(node="x", python="3.12.3", versions={"flatout": __version__})
).decode()
GAVE_UP = "The current node timed out during startup."
HEAD, FIRST, SECOND = "172.20.0.2", "172.20.0.3", "172.20.0.4"
ALL = [(HEAD, "ALIVE"), (FIRST, "ALIVE"), (SECOND, "ALIVE")]


class Engine(RecordedSystem):
    """Docker with the recorded containers: head and two workers, whose states can be changed."""

    def __init__(self) -> None:
        super().__init__(
            SystemRecording(platform="linux", calls=Calls(python_version="3.12.3", num_threads=8))
        )
        self.rows = {one["Name"]: one for one in json.loads(INSPECTED)}
        self.restarted: list[str] = []

    def run(self, argv: Sequence[str], timeout_s: float) -> Completed:
        """What Docker answers now."""
        if argv[1] == "restart":
            self.restarted.append(argv[2])
        reported = {
            "inspect": json.dumps(list(self.rows.values())),
            "logs": GAVE_UP,
            "exec": REPORT,
            "ps": "\n".join(self.rows),
            "version": "27.0.0",
            "compose": "2.29.0",
        }
        return Completed(stdout=reported.get(argv[1], ""), exit_code=0)

    def end(self, name: str, *, at: str, **state: Any) -> None:
        """A container ends."""
        ended = {"Status": "exited", "ExitCode": 1, "FinishedAt": at}
        self.rows[name]["State"] |= {**ended, **state}

    def begin(self, name: str) -> None:
        """A container is well."""
        self.rows[name]["State"]["Status"] = "running"


@pytest.fixture
def ray() -> Iterator[tuple[list[tuple[str, str]], int]]:
    """What a dashboard says of its nodes, to be changed, and its port."""
    rows = list(ALL)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            nodes = [{"node_ip": address, "state": state} for address, state in rows]
            answer = {"result": True, "data": {"result": {"total": 9, "result": nodes}}}
            self.send_response(200 if self.path.startswith("/api/v0/nodes?") else 404)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *words: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield rows, server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


def folder(path: Path, port: int = 1) -> Folder:
    """A cluster of Ray whose dashboard is at that port; 1 is nobody's."""
    settings = {"COMPOSE_PROJECT_NAME": "flatout-lab", "CLUSTER_ENGINE": "ray",
                "CLUSTER_DASHBOARD_PORT": str(port)}  # fmt: skip
    return Folder(path=path, settings=settings)


def test_a_node_that_ray_does_not_have_is_not_well(
    tmp_path: Path, ray: tuple[list[tuple[str, str]], int]
) -> None:
    rows, port = ray

    def found() -> tuple[list[str | None], list[str]]:
        state = containers.state(folder(tmp_path, port), Engine())
        assert state.unread == {}
        return [one.health for one in state.containers], [one.rule for one in state.findings]

    assert found() == (["healthy"] * 3, [])
    # It was cut off and has come back: Docker calls it healthy still.
    rows[2] = (SECOND, "DEAD")
    assert found() == (["healthy", "healthy", "lost"], ["cluster-node-lost"])
    # Its container was started again, with the address of before.
    rows.append((SECOND, "ALIVE"))
    assert found() == (["healthy"] * 3, [])
    # Ray knows all of them by other addresses, and so says nothing of these.
    rows[:] = [("10.0.0.7", "ALIVE")]
    assert found() == (["healthy"] * 3, [])


def test_a_head_that_says_nothing_of_its_nodes_is_reported(tmp_path: Path) -> None:
    state = containers.state(folder(tmp_path), Engine())
    assert state.unread.keys() == {"Ray"} and state.findings == ()
    with pytest.raises(RunFailed) as reported:
        ray_jobs.nodes(RayHead(address="http://127.0.0.1:1"), 1.0)
    assert reported.value.rule == "ray-not-answering"


def test_later_trial_of_a_sweep_trains_on_the_nodes_that_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "compose.yaml").touch()
    (tmp_path / ".env").write_text("COMPOSE_PROJECT_NAME=flatout-lab\nCLUSTER_ENGINE=ray\n")
    monkeypatch.chdir(tmp_path)
    engine, on = Engine(), parse_placement("cluster")
    engine.end(list(engine.rows)[-1], at="2026-11-22T10:00:00Z")
    with pytest.raises(UsageError) as refused:
        train._where(on, system=engine)
    assert refused.value.rule == "cluster-not-up"
    assert train._where(on, is_whole=False, system=engine).head is not None
    first, second = (SweepRun(id="s", trial=number) for number in (1, 2))
    assert not TrainRequest(sweep=first).is_later_trial and not TrainRequest().is_later_trial
    assert TrainRequest(resume="s-002", sweep=second).is_later_trial


def started(
    engine: Engine, where: Folder, start: Callable[[], None], limit_s: float = 60.0
) -> list[Finding]:
    reported: list[Finding] = []
    containers.start_until_well(
        where, engine, start, limit_s=limit_s, on_wait=lambda _: None, on_warning=reported.append
    )
    return reported


def test_what_ends_while_it_starts_is_started_again(tmp_path: Path) -> None:
    engine, name = Engine(), "/flatout-lab_head_1"
    num_starts = 0

    def start() -> None:
        nonlocal num_starts
        num_starts += 1
        if num_starts < 3:
            engine.end(name, at=f"2026-11-22T10:0{num_starts}:00Z")
            # As Compose says it, where the others wait for the head.
            raise RunFailed("docker-failed", "`docker compose up` has failed.", fix="")
        engine.begin(name)

    reported = started(engine, folder(tmp_path), start)
    assert [(one.severity, one.problem) for one in reported] == [
        ("note", "restarting flatout-lab_head_1.")
    ] * 2
    assert all(GAVE_UP in str(one.because) for one in reported)


@pytest.mark.parametrize(("memory", "count"), [(False, 3), (True, 1)])
def test_starting_again_has_an_end(tmp_path: Path, memory: bool, count: int) -> None:
    engine, starts = Engine(), []

    def start() -> None:
        starts.append(len(starts))
        engine.end("/flatout-lab_worker_2", at=f"{starts}", OOMKilled=memory)

    with pytest.raises(RunFailed, match="flatout-lab_worker_2 is not healthy") as reported:
        started(engine, folder(tmp_path), start)
    assert reported.value.rule == "cluster-not-healthy" and len(starts) == count


def test_what_had_ended_before_is_not_why_docker_fails(tmp_path: Path) -> None:
    engine = Engine()
    engine.end("/flatout-lab_head_1", at="yesterday")

    def start() -> None:
        raise RunFailed("docker-failed", "there is no such image.", fix="")

    with pytest.raises(RunFailed, match="no such image"):
        started(engine, folder(tmp_path), start)


def test_a_node_that_ray_gave_up_is_started_again(
    tmp_path: Path, ray: tuple[list[tuple[str, str]], int]
) -> None:
    rows, port = ray
    rows[1] = (FIRST, "DEAD")
    engine = Engine()
    id = engine.rows["/flatout-lab_worker_1"]["Id"]
    reported = started(engine, folder(tmp_path, port), lambda: rows.append((FIRST, "ALIVE")))
    assert engine.restarted == [id]
    assert "does not re-admit nodes" in str(reported[0].because) and len(reported) == 1
    # One that is in no network may come back before it is missed.
    network = engine.rows["/flatout-lab_worker_2"]["NetworkSettings"]["Networks"]
    network["flatout-lab"]["IPAddress"] = ""
    with pytest.raises(RunFailed, match="it is lost after"):
        started(engine, folder(tmp_path, port), lambda: None, limit_s=0.0)
    assert engine.restarted == [id]
