"""What `flatout serve --on ray` runs in actors, without Ray: paths, metrics of all, the token."""

from __future__ import annotations

import asyncio
import pickle
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from support.linear_dispatcher import LinearDispatcher
from support.serving import plan_for

from flatout.errors import RunFailed
from flatout.schema.serve_protocol import ReplicaStart
from flatout.schema.serve_request import ServeRequest
from flatout.serve import ray_serve
from flatout.serve.api import _ended_by
from flatout.serve.ray_application import MetricsBoard, RayApplication, SharedMetrics
from flatout.serve.ray_serve import (
    RayServer,
    at_address,
    builder,
    gpu_share,
    left_after,
    running_address,
)
from flatout.serve.replica_plan import ModelSource
from flatout.serve.running_server import limits_of, options_of
from flatout.serve.serve_errors import ServerBusy


def requests_in(text: bytes) -> dict[str, float]:
    """Requests that each process has counted."""
    return {
        sample.labels["process"]: sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
        if sample.name == "flatout_serve_requests_total"
    }


def shared_by(board: MetricsBoard) -> SharedMetrics:
    return SharedMetrics(LinearDispatcher(), board.push, board.collect)


def test_metrics_of_replicas_never_fall_whichever_is_asked() -> None:
    async def asked_in_turn() -> list[dict[str, float]]:
        board = MetricsBoard()
        replicas = [shared_by(board), shared_by(board)]
        pushing = [asyncio.create_task(one.push_forever()) for one in replicas]
        found = []
        for number in range(6):
            # Ray sends more to one of them.
            replicas[number % 3 % 2].count("/predict", 200, 0.01)
            await asyncio.sleep(0)
            found.append(requests_in(await replicas[number % 2].answer()))
        found.append(requests_in(await replicas[0].answer()))
        for one in pushing:
            one.cancel()
        return found

    found = asyncio.run(asked_in_turn())
    for before, now in zip(found, found[1:], strict=False):
        assert all(now[process] >= count for process, count in before.items())
    assert sorted(found[-1].values()) == [2, 4]


def test_metrics_of_a_replica_that_has_ended_are_left_out() -> None:
    async def asked() -> bytes:
        board = MetricsBoard(gone_s=0.1)
        gone = shared_by(board)
        gone.count("/predict", 200, 0.01)
        assert requests_in(await gone.answer())
        await asyncio.sleep(0.2)
        return await shared_by(board).answer()

    assert requests_in(asyncio.run(asked())) == {}


def test_metrics_are_refused_while_their_actor_is_gone() -> None:
    async def fails(replica: str, text: str) -> Any:
        raise ConnectionError("the actor died")

    metrics = SharedMetrics(LinearDispatcher(), fails, fails)
    with pytest.raises(ServerBusy):
        asyncio.run(metrics.answer())


def test_token_is_not_in_what_is_pickled() -> None:
    request = ServeRequest(token="s3cret-of-mine")
    build = builder(plan_for(), limits_of(request), options_of(request), "first-3fa9c1")
    pickled = pickle.dumps([cell.cell_contents for cell in build.__closure__ or ()])
    assert b"first-3fa9c1" in pickled and b"s3cret-of-mine" not in pickled


def test_application_when_it_is_below_a_path() -> None:
    request = ServeRequest(token="s3cret")

    async def statuses() -> list[int]:
        board = MetricsBoard()
        application = RayApplication(
            plan_for(), limits_of(request), options_of(request), board.push, board.collect
        )
        return [await status_of(application, path) for path in ("/health/live", "/metrics")]

    assert asyncio.run(statuses()) == [200, 401]


@given(st.integers(1, 10_000), st.integers(1, 16))
def test_replicas_of_a_ray_of_its_own_have_room_at_once(num_replicas: int, num_gpus: int) -> None:
    # As Ray counts: rounded to a ten-thousandth.
    parts = round(gpu_share(num_replicas, num_gpus) * 10_000)
    assert parts > 0 and num_gpus * (10_000 // parts) >= num_replicas
    if num_replicas <= num_gpus:
        assert parts == 10_000


def test_replicas_take_no_gpu_where_there_is_none() -> None:
    assert gpu_share(2, 0) == 0.0


def statuses(*left: int) -> Any:
    """`ray.serve.status` of an application with so many replicas left, at each look."""
    looks = iter(left)

    def status() -> Any:
        count = next(looks)
        deployment = SimpleNamespace(replica_states={"STOPPING": count, "RUNNING": 0})
        application = SimpleNamespace(status="DELETING", deployments={"replicas": deployment})
        return SimpleNamespace(applications={"first": application} if count else {})

    return status


def test_end_waits_longer_than_ray_does() -> None:
    assert left_after(statuses(2, 1, 0), "first", 30.0) is None
    # Gone in the moment in which Ray gave up.
    assert left_after(statuses(0), "first", -1.0) is None


def test_end_says_what_is_left() -> None:
    assert left_after(statuses(2), "first", 0.0) == "DELETING; replicas: 2 STOPPING"


def test_address_of_a_running_ray_serve() -> None:
    config = SimpleNamespace(host=None, port=8123)
    context = SimpleNamespace(_get_global_client=lambda: SimpleNamespace(http_config=config))
    assert running_address(lambda: context, "2.60.0") == (None, 8123)


@pytest.mark.parametrize(
    "context",
    [
        SimpleNamespace(),
        SimpleNamespace(_get_global_client=lambda: None),
        SimpleNamespace(_get_global_client=lambda required: required),
    ],
)
def test_ray_that_keeps_the_address_elsewhere_is_named(context: Any) -> None:
    with pytest.raises(RunFailed) as caught:
        running_address(lambda: context, "3.1.4")
    assert caught.value.rule == "ray-serve-failed" and "Ray 3.1.4" in caught.value.problem
    assert "ray[serve]==2.60" in caught.value.fix


def test_ray_whose_modules_have_other_names_is_named() -> None:
    def missing() -> Any:
        raise ModuleNotFoundError("No module named 'ray.serve.context'")

    with pytest.raises(RunFailed) as caught:
        running_address(missing, "3.1.4")
    assert caught.value.because == "No module named 'ray.serve.context'"


class AnyServe:
    """Ray Serve. proxies: of the one that runs. It starts no application, and ends none."""

    def __init__(self, **proxies: str) -> None:
        self.proxies = proxies
        self.started: list[dict[str, Any]] = []
        self.applications: dict[str, Any] = {}

    def status(self) -> Any:
        return SimpleNamespace(proxies=self.proxies, applications=self.applications)

    def start(self, http_options: dict[str, Any]) -> None:
        self.started.append(http_options)

    def deployment(self, thing: Any, **options: Any) -> Any:
        return SimpleNamespace(bind=lambda *parts: None)

    def ingress(self, build: Any) -> Any:
        return lambda replica: replica

    def run(self, application: Any, name: str, route_prefix: str) -> Any:
        self.applications[name] = SimpleNamespace(status="DELETING", deployments={})
        raise RuntimeError("the model is damaged")

    def delete(self, name: str) -> None:
        raise TimeoutError


def no_address() -> tuple[str | None, int]:
    raise RunFailed("ray-serve-failed", "a Ray of another version", fix="-")


def test_address_is_that_of_the_serve_that_was_joined() -> None:
    # Without a proxy so far, or started by someone else a moment ago.
    serve = AnyServe()
    found = at_address(ServeRequest(port=0), serve, lambda: ("0.0.0.0", 8123))
    assert (found.host, found.port) == ("0.0.0.0", 8123) and len(serve.started) == 1


def test_address_is_the_one_asked_for_where_ray_does_not_report_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    serve = AnyServe()
    assert at_address(ServeRequest(port=port), serve, no_address).port == port
    assert serve.started == [{"host": "127.0.0.1", "port": port}]
    with pytest.raises(RunFailed, match="another version"):
        at_address(ServeRequest(port=port), AnyServe(node="HEALTHY"), no_address)


@pytest.fixture(params=["", "127.0.0.1:6379"], ids=["own", "joined"])
def stuck(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> RayServer:
    """A server whose application does not start, and does not end either."""
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path))
    monkeypatch.setenv("RAY_ADDRESS", request.param)
    ray = SimpleNamespace(shutdown=lambda: None)
    monkeypatch.setattr(ray_serve, "_imported", lambda: (ray, AnyServe()))
    monkeypatch.setattr(ray_serve, "_END_S", 0.0)
    source = ModelSource(name="first", place="-", command=(), start=ReplicaStart(model="first"))
    return RayServer(source, ServeRequest(port=8123, timeout_s=0.0))


def test_end_does_not_hide_why_the_start_failed(stuck: RayServer) -> None:
    with pytest.raises(RunFailed) as caught, _ended_by(stuck.end):
        stuck.start()
    assert caught.value.problem == "Ray Serve could not start the application."
    assert caught.value.because == "the model is damaged"


def test_end_of_a_ray_of_its_own_takes_all_with_it(stuck: RayServer) -> None:
    with pytest.raises(RunFailed):
        stuck.start()
    if stuck._address is None:
        stuck.end()
        return
    with pytest.raises(RunFailed, match="had not ended"), _ended_by(stuck.end):
        pass


async def status_of(application: RayApplication, path: str) -> int:
    sent: list[Any] = []
    scope = {
        "type": "http", "method": "GET", "path": f"/first-3fa9c1{path}", "raw_path": b"",
        "root_path": "/first-3fa9c1", "query_string": b"", "headers": [], "http_version": "1.1",
    }  # fmt: skip

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await application(scope, receive, send)
    return int(sent[0]["status"])
