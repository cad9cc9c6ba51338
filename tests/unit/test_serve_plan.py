"""What replicas are started: their number, devices and threads; and durations of the options."""

from __future__ import annotations

import socket
from pathlib import Path

import msgspec
import pytest

from flatout.errors import UsageError
from flatout.schema.serve_control import ReplicaPlan
from flatout.schema.serve_model import ServedModel
from flatout.schema.serve_protocol import ReplicaStart
from flatout.schema.serve_request import ModelRequest, ServeRequest
from flatout.schema.units import parse_seconds
from flatout.serve.replica_plan import (
    ModelSource,
    find_model,
    is_exported,
    plan_replicas,
    shared_out,
)
from flatout.system.cpu_name import num_usable_cores
from flatout.system.server_socket import is_loopback, listening_socket


def source(trained_on: str = "cpu", num_gpus: int = 0, **fixed: object) -> ModelSource:
    start = ReplicaStart(model="/runs/digits-0001", fixed=fixed)
    return ModelSource(
        name="digits-0001", place="/p", command=("/p",), start=start, device=trained_on,
        num_gpus=num_gpus,
    )  # fmt: skip


def devices(found: ModelSource, num_replicas: int | None = None) -> list[object]:
    plan = plan_replicas(found, ServeRequest(num_replicas=num_replicas))
    return [start.fixed.get("device") for start in plan.starts]


def test_first_replica_measures_how_many_cores_it_needs() -> None:
    cores = max(1, num_usable_cores() - 1)
    plan = plan_replicas(source(), ServeRequest())
    (start,) = plan.starts
    # One is left for the server.
    assert start.num_threads == cores
    assert plan.num_cores == (num_usable_cores() if num_usable_cores() > 1 else None)
    assert start.spares_threads == (num_usable_cores() > 1)


def count_of(
    num_cores: int, sample_s: float, num_threads: int = 1, num_more: int = 20
) -> int:  # fmt: skip
    """How many replicas share the cores, by seconds for a sample."""
    start = ReplicaStart(model="/runs/digits-0001", num_threads=15, spares_threads=True)
    plan = ReplicaPlan(name="digits", command=("/p",), starts=(start,), num_cores=num_cores)
    model = ServedModel(
        name="digits", version="1", format="run", num_threads=num_threads, max_samples=2,
        batch_s={1: sample_s, 2: 2 * sample_s},
    )  # fmt: skip
    found = shared_out(plan, model, num_more)
    assert found.num_cores is None
    assert {(one.num_threads, one.spares_threads) for one in found.starts} == {(num_threads, False)}
    return len(found.starts)


@pytest.mark.parametrize(
    ("num_threads", "num_more", "count"),
    [(1, 20, 15), (4, 20, 3), (15, 20, 1), (1, 2, 3), (1, 0, 1)],
)
def test_cores_are_shared_out_as_the_first_replica_needs_them(
    num_threads: int, num_more: int, count: int
) -> None:
    assert count_of(16, 1e-4, num_threads, num_more) == count


@pytest.mark.parametrize(
    ("num_cores", "sample_s", "num_threads", "count"),
    [
        (2, 1e-4, 1, 1), (2, 5e-4, 1, 2), (2, 5e-4, 2, 1),
        (16, 5e-4, 1, 15), (16, 7e-3, 1, 16), (16, 7e-3, 4, 4),
    ],
)  # fmt: skip
def test_no_core_is_left_for_a_server_that_would_mostly_wait(
    num_cores: int, sample_s: float, num_threads: int, count: int
) -> None:
    assert count_of(num_cores, sample_s, num_threads) == count


def test_server_has_a_core_where_no_batch_was_measured() -> None:
    start = ReplicaStart(model="/runs/digits-0001")
    plan = ReplicaPlan(name="digits", command=("/p",), starts=(start,), num_cores=3)
    unknown = ServedModel(name="digits", version="1", format="run", num_threads=1)
    assert len(shared_out(plan, unknown, 20).starts) == 2


def test_replicas_of_an_exported_file_have_a_thread_each() -> None:
    start = ReplicaStart(model="/data/model.onnx")
    plan = plan_replicas(msgspec.structs.replace(source(), start=start), ServeRequest())
    assert len(plan.starts) == max(1, num_usable_cores() - 1)
    assert {start.num_threads for start in plan.starts} == {1}


def test_threads_are_shared_out_among_replicas() -> None:
    (start,) = plan_replicas(source(), ServeRequest(num_replicas=1)).starts
    assert start.num_threads == max(1, num_usable_cores() - 1)
    many = plan_replicas(source(), ServeRequest(num_replicas=64)).starts
    assert len(many) == 64 and many[0].num_threads == 1


def test_cores_of_this_machine_are_not_shared_out_to_containers() -> None:
    contained = msgspec.structs.replace(source(), has_own_cores=True)
    (start,) = plan_replicas(contained, ServeRequest()).starts
    assert start.num_threads is None
    assert len(plan_replicas(contained, ServeRequest(num_replicas=3)).starts) == 3


def test_threads_are_those_that_were_fixed() -> None:
    (start, *_) = plan_replicas(source(num_threads=3), ServeRequest()).starts
    assert start.num_threads is None
    many = num_usable_cores() * 2
    assert len(plan_replicas(source(num_threads=many), ServeRequest()).starts) == 1


@pytest.mark.parametrize(
    ("found", "num_replicas", "expected"),
    [
        (source("cuda", 1), None, [None]),
        (source("cuda", 2), None, ["cuda:0", "cuda:1"]),
        (source("cuda", 2), 3, ["cuda:0", "cuda:1", "cuda:0"]),
        (source("cuda", 0), 1, [None]),
        (source("cpu", 2), 1, [None]),
        (source("cpu", 2, device="cuda"), None, ["cuda:0", "cuda:1"]),
        (source("cuda", 2, device="cuda:1"), None, ["cuda:1"]),
        (source("cuda", 2, device="cuda:1"), 2, ["cuda:1", "cuda:1"]),
        (source("cuda", 2, device="cpu"), 1, ["cpu"]),
        # The engine says that there is none.
        (source("cpu", 0, device="cuda"), None, ["cuda"]),
    ],
)
def test_devices(found: ModelSource, num_replicas: int | None, expected: list[object]) -> None:
    assert devices(found, num_replicas) == expected


def test_fixed_batch_has_no_target() -> None:
    plan = plan_replicas(source(), ServeRequest(max_samples=4, num_replicas=1))
    assert plan.latency_s is None and plan.starts[0].max_samples == 4
    assert plan_replicas(source(), ServeRequest(latency_s=0.1)).latency_s == 0.1


def test_exported_file_is_known_by_its_ending(tmp_path: Path) -> None:
    assert is_exported("model.ONNX") and is_exported("a/b.pt2") and not is_exported("digits-0001")
    with pytest.raises(UsageError, match="there is no file") as caught:
        find_model(ModelRequest(model=str(tmp_path / "model.onnx")))
    assert caught.value.rule == "exported-file-not-found"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("20ms", 0.02), ("1.5 s", 1.5), ("2min", 120.0), ("500us", 0.0005), ("1h", 3600.0)],
)
def test_parse_seconds(text: str, seconds: float) -> None:
    assert parse_seconds(text, "--latency") == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["20", "0ms", "-1s", "ms", "1 day", "", "1e3s", "nan s"])
def test_parse_seconds_of_something_else(text: str) -> None:
    with pytest.raises(UsageError, match="not a duration"):
        parse_seconds(text, "--latency")


def test_port_that_is_in_use_is_refused() -> None:
    with listening_socket("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError) as caught:
            listening_socket("127.0.0.1", port)
    assert caught.value.rule == "port-in-use" and f"{port + 1}" in caught.value.fix


@pytest.mark.parametrize("host", ["192.0.2.1", "no..name", "nowhere.invalid"])
def test_host_of_another_computer_is_refused(host: str) -> None:
    with pytest.raises(UsageError) as caught:
        listening_socket(host, 0)
    assert caught.value.rule == "bad-address"


def test_listening_socket_is_free_again_at_once() -> None:
    listener = listening_socket("127.0.0.1", 0)
    port = listener.getsockname()[1]
    with socket.create_connection(("127.0.0.1", port)):
        listener.close()
    listening_socket("127.0.0.1", port).close()


def test_is_loopback() -> None:
    assert is_loopback("localhost") and is_loopback("127.0.0.53") and is_loopback("::1")
    assert not is_loopback("0.0.0.0") and not is_loopback("192.168.1.2")
