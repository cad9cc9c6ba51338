"""What the soak of `flatout serve` counts, and its generator of requests."""

from __future__ import annotations

import asyncio
import random
import struct
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from serving_soak import (
    LARGEST_GROWTH,
    MemorySample,
    Minute,
    Soak,
    Swap,
    allowed_models,
    doubts,
    growth,
    judged,
    memory_growth,
    steps_of,
)
from soak_timeline import Reading, timeline
from support import http_load
from support.busy_machine import first_good
from support.load_server import Asked, Reply, load_server

SWAPS = (Swap(1, 100.0, 110.0), Swap(0, 200.0, 210.0))


@pytest.mark.parametrize(
    ("due_s", "done_s", "models"),
    [
        (10, 11, {0}),
        (99, 101, {0, 1}),
        (105, 106, {0, 1}),
        (109, 111, {0, 1}),
        (111, 112, {1}),
        (199, 201, {0, 1}),
        (250, 251, {0}),
        (99, 250, {0, 1}),
    ],
)
def test_allowed_models_when_swapped_twice(due_s: float, done_s: float, models: set[int]) -> None:
    assert allowed_models(due_s, done_s, SWAPS) == models


def test_judged_when_there_is_everything(tmp_path: Path) -> None:
    rows = [
        (10, 0.1, 200, 0, 0b01), (10, 0.1, 200, 0, 0b10), (10, 0.1, 200, 0, 0),
        (150, 0.1, 200, 0, 0b10), (150, 0.1, 200, 0, 0b01), (105, 0.1, 200, 0, 0b01),
        (10, 0.1, 503, 0, 1), (10, 0.1, 503, 0, 0), (10, 5.0, 0, 0, http_load.TIMED_OUT),
        (10, 0.1, 0, 0, http_load.LOST), (10, 0.1, 500, 0, 0),
    ]  # fmt: skip
    (tmp_path / "records").write_bytes(b"".join(http_load.RECORD.pack(*row) for row in rows))
    counts = judged([tmp_path / "records"], Soak(swaps=list(SWAPS)))
    assert counts == {
        "requests": 11, "right": 3, "wrong": 3, "refused": 1, "status_503": 1, "timed_out": 1,
        "lost": 1, "status_500": 1, "answered": 6, "unsent": 0, "p50_s": 0.1, "p99_s": 0.1,
    }  # fmt: skip


def test_growth_when_memory_is_flat_or_grows() -> None:
    dice = random.Random(1)
    flat = [(5.0 * n, 1e8 + dice.gauss(0, 1e5)) for n in range(100)]
    found = growth(flat)
    assert found is not None and found[1] < 0 < found[2]
    found = growth([(at, value * (1 + 0.1 * at / 495)) for at, value in flat])
    assert found is not None and 0.08 < found[1] < found[0] < 0.11
    assert growth(flat[:5]) is None
    # Three minutes at 1,200 requests a second that leave 20 bytes each.
    found = growth([(at, 6.7e7 + 20 * 1200 * at) for at in range(20, 180, 5)])
    assert found is not None and found[1] > LARGEST_GROWTH


def sample(at_s: float, num_bytes: float, batch_limit: float) -> MemorySample:
    return MemorySample(at_s, round(num_bytes), (round(num_bytes),), batch_limit)


def test_memory_growth_when_a_step_comes_with_larger_batches() -> None:
    def stepped(*limits: float) -> list[MemorySample]:
        """A step of 5 % after half of the time."""
        return [sample(5.0 * n, 7e7 * (1.05 if n >= 50 else 1.0), limits[n // 50])
                for n in range(100)]  # fmt: skip

    for found in memory_growth(stepped(64, 128)).values():
        assert found is not None and abs(found[0]) < 1e-6
    # Without larger batches, a step is growth: with the same ones, and with smaller ones.
    for limits in ((64, 64), (64, 32)):
        for found in memory_growth(stepped(*limits)).values():
            assert found is not None and found[1] > LARGEST_GROWTH
    # So is a slope, whatever batches become.
    sloped = [sample(5.0 * n, 7e7 * (1 + 0.001 * n), 64 if n < 50 else 128) for n in range(100)]
    for found in memory_growth(sloped).values():
        assert found is not None and 0.09 < found[1] <= found[0] < 0.1
    assert steps_of(stepped(64, 32)) == [(64, pytest.approx(7e7 * 1.025))]
    assert steps_of(stepped(64, 128)) == [(64, 7e7), (128, pytest.approx(7.35e7))]


def test_doubts_when_the_machine_became_slower() -> None:
    def minute(num_unsent: int = 0) -> Minute:
        return Minute(1000.0, 800.0, Path("records"), (), num_unsent)

    assert list(doubts([1000.0, 900.0, 950.0], Soak(minutes=[minute()]))) == []
    (text,) = doubts([1000.0, 700.0, 950.0], Soak(minutes=[minute()]))
    assert "1,000 answers/s at the start, 950 at the end, and between 700 and 1,000" in text
    (text,) = doubts([1000.0, 900.0], Soak(minutes=[minute(), minute(7)]))
    assert text.startswith("minute 2 was an overload: 7 requests")


def test_timeline_when_a_backlog_is_worked_off() -> None:
    # 10 requests a second for 20 s; nothing is answered from 5 s to 10 s.
    dues = [n / 10 for n in range(200)]
    records = [
        (1e9 + due, 10.5 - due if 5 <= due < 10 else 0.05, 200, 0, 1) for due in dues
    ]  # fmt: skip
    counts = {
        "flatout_serve_samples_total": (0.0, 50.0, 200.0),
        "flatout_serve_batches_total": (0.0, 50.0, 65.0),
        "flatout_serve_compute_seconds_total": (0.0, 1.0, 2.5),
        "flatout_serve_queue_requests": (0.0, 40.0, 0.0),
    }
    readings = [
        Reading(
            10.0 * place, {name: values[place] for name, values in counts.items()},
            {"server": 5.0 * place, f"replica {place // 2}": 2.0 * place},
        )
        for place in range(3)
    ]  # fmt: skip
    first, second = timeline(records, readings, rate_per_s=10, duration_s=20)
    assert (first["answered_per_s"], first["waiting"], first["queue"]) == (5.0, 50, 40)
    assert (second["answered_per_s"], second["waiting"], second["batch_samples"]) == (15.0, 0, 10)
    assert second["p50_s"] == 0.05 and second["p99_s"] == pytest.approx(5.4)
    assert second["sample_s"] == pytest.approx(0.01)
    # A replica that has just started has all of its time from here.
    assert second["cpus"] == {"server": 0.5, "replica": 0.4}


def run(server_port: int, **changes: object) -> http_load.LoadResult:
    options = {"port": server_port, "path": "/predict", "bodies": ["[1]", "[2]"],
               "warmup_s": 0.1, "duration_s": 1.0, **changes}  # fmt: skip
    return asyncio.run(http_load.run(http_load.Job(**options)))  # type: ignore[arg-type]


def is_quick(result: http_load.LoadResult) -> bool:
    return result.answers_per_s > 80 and result.p50_s is not None and result.p50_s < 0.05


def test_generator_when_answers_take_20_ms() -> None:
    with load_server(lambda asked: Reply(delay_s=0.02)) as server:
        # Other programs only make it slower.
        result = first_good(lambda: run(server.port, users=4), is_quick)
    assert is_quick(result)
    assert result.answers_per_s <= 200
    assert result.p50_s is not None and result.p50_s >= 0.02
    assert result.statuses == {"200": result.num_requests}


def test_generator_when_more_is_due_than_is_answered() -> None:
    with load_server(lambda asked: Reply(delay_s=30.0)) as server:
        result = run(server.port, users=1, rate_per_s=50.0, timeout_s=0.2)
    # A connection waits 0.2 s for each: most of 55 are not even sent before the end.
    assert result.num_timed_out < result.num_unsent < 55 and result.num_answered == 0


def test_generator_when_answers_are_known(tmp_path: Path) -> None:
    def reply(asked: Asked) -> Reply:
        label = b"a" if asked.body == b"[1]" else b"x"
        return Reply(b'{"predictions": [[{"label": "' + label + b'", "probability": 0.5}]]}')

    expected = [[{"label": "a", "probability": 0.5}], [{"label": "b"}, {"label": "c"}]]
    with load_server(reply) as server:
        result = run(
            server.port, rate_per_s=50.0, users=8, expected=expected,
            records=str(tmp_path / "records"),
        )  # fmt: skip
    assert 49 <= result.num_requests <= 51
    assert 24 <= result.num_wrong <= 26
    records = list(http_load.RECORD.iter_unpack((tmp_path / "records").read_bytes()))
    assert len(records) == result.num_requests
    assert all((place == 0) == (what == 1) for _, _, _, place, what in records)


def has_each_tenth(result: http_load.LoadResult) -> bool:
    """Whether each kind of failure is a tenth of the requests, as far as they are that few."""
    counts = (result.num_lost, result.num_timed_out, result.statuses.get("503", 0))
    return 99 <= result.num_requests <= 101 and all(5 <= count <= 15 for count in counts)


def test_generator_when_requests_are_lost_or_late() -> None:
    def reply(asked: Asked) -> Reply:
        kinds = {1: Reply(is_closed=True), 2: Reply(status=503), 3: Reply(delay_s=30.0)}
        return kinds.get(asked.number % 10, Reply())

    with load_server(reply) as server:
        result = first_good(
            lambda: run(server.port, rate_per_s=100.0, users=32, timeout_s=0.5), has_each_tenth
        )
    assert has_each_tenth(result), result


@pytest.mark.timing
def test_generator_leaves_the_cpu_to_the_server_when_requests_are_due_every_300_us() -> None:
    with load_server(lambda asked: Reply(delay_s=0.02)) as server:
        job = http_load.Job(
            port=server.port, path="/predict", bodies=["[1]"], rate_per_s=3300.0, warmup_s=0.1,
            timeout_s=0.2,
        )  # fmt: skip

        def measured_cpus() -> float:
            # As campaigns start it: with uvloop.
            done = subprocess.run(
                [sys.executable, "-P", http_load.__file__], input=msgspec.json.encode(job),
                capture_output=True, check=True,
            )  # fmt: skip
            return float(msgspec.json.decode(done.stdout, type=http_load.LoadResult).cpus)

        assert first_good(measured_cpus, lambda cpus: cpus < 0.4) < 0.4


def test_record_when_it_has_a_size() -> None:
    assert http_load.RECORD.size == struct.calcsize("<ddHIB")
