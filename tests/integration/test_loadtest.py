"""Load tests against a server with known latencies: Locust sends the requests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.busy_machine import first_good
from support.load_server import Asked, LoadServer, Reply, flatout_pages, load_server

from flatout.schema.loadtest import LoadFile, LoadStep
from flatout.serve.load_target import LoadRequest
from flatout.serve.loadtest import LoadProgress, LoadTest

# Not imported: it would change the standard library of this process.
pytestmark = pytest.mark.skipif(find_spec("locust") is None, reason="needs locust")
SRC = Path(__file__).resolve().parents[2] / "src"


def measured(server: LoadServer, **changes: object) -> LoadFile:
    options = {"url": server.url, "input": "[1]", "warmup_s": 0.2, "duration_s": 1.0, **changes}
    with LoadTest(LoadRequest(**options)) as test:  # type: ignore[arg-type]
        for _ in test.events():
            pass
        return test.result()


def reported(file: LoadFile) -> LoadStep:
    assert file.reported is not None
    return file.reported


def test_users_when_every_answer_takes_50_ms() -> None:
    def is_quick(file: LoadFile) -> bool:
        step = reported(file)
        assert step.latency is not None
        is_undisturbed = file.finding is None
        return is_undisturbed and step.latency.p50_s < 0.09 and step.answers_per_s > 0.6 * 80

    with load_server(lambda asked: Reply(delay_s=0.05)) as server:
        # Other programs only make it slower.
        file = first_good(lambda: measured(server, users=4, duration_s=2.0), is_quick)
    assert is_quick(file)
    step = reported(file)
    assert step.latency is not None and step.latency.p50_s >= 0.05
    # Four users that each wait 50 ms.
    assert step.answers_per_s <= 80
    assert step.num_errors == 0 and step.errors == ()
    assert abs(step.num_requests - step.answers_per_s * 2) < 10
    assert step.generator_cpus is not None and 0 < step.generator_cpus < 1
    assert file.finding is None


def test_rate_when_the_server_keeps_up() -> None:
    def is_quick(step: LoadStep) -> bool:
        return step.latency is not None and step.latency.p50_s < 0.05

    with load_server(lambda asked: Reply(delay_s=0.02)) as server:
        step = first_good(lambda: reported(measured(server, rate_per_s=100.0)), is_quick)
    assert is_quick(step)
    assert 99 <= step.num_requests <= 101
    assert step.latency is not None and step.latency.p50_s >= 0.02
    assert step.lag_s is not None


@pytest.mark.timing
def test_rate_when_the_server_stalls() -> None:
    """A stall of 1 s is in the latency of all requests that were due in it."""

    def reply(asked: Asked) -> Reply:
        if asked.number == 250:
            stalls_at.append(asked.at_s)
        since_s = asked.at_s - stalls_at[0] if stalls_at else 1.0
        return Reply(delay_s=1.0 - since_s if since_s < 1 else 0.0)

    stalls_at: list[float] = []

    def measured_once() -> LoadStep:
        stalls_at.clear()
        with load_server(reply) as server:
            return reported(measured(server, rate_per_s=100.0, duration_s=6.0, warmup_s=0.5))

    def num_slow(step: LoadStep) -> int:
        return sum(bucket.count for bucket in step.buckets if bucket.most_s > 0.1)

    def has_one_stall(step: LoadStep) -> bool:
        return step.latency is not None and step.latency.p50_s < 0.1 and num_slow(step) <= 130

    # Of other stalls, other programs are the cause.
    step = first_good(measured_once, has_one_stall)
    assert has_one_stall(step) and step.latency is not None
    # 100 of 600 requests were due in the stall, and waited half a second on average.
    assert step.latency.max_s > 0.9
    assert step.latency.p90_s > 0.25
    assert num_slow(step) >= 70
    assert 595 <= step.num_requests <= 605
    slowest = max(one.p50_s for one in step.seconds if one.p50_s is not None)
    assert slowest > 0.25


def test_users_when_the_server_stalls() -> None:
    """What a closed loop hides: it sends nothing while it waits."""

    def reply(asked: Asked) -> Reply:
        return Reply(delay_s=1.0 if asked.number == 40 else 0.01)

    def measured_once() -> LoadStep:
        with load_server(reply) as server:
            return reported(measured(server, users=1, duration_s=3.0))

    def is_quick(step: LoadStep) -> bool:
        # With the stall in as many requests as were due in it, it would be 0.7 s.
        return step.latency is not None and step.latency.p90_s < 0.4

    step = first_good(measured_once, is_quick)
    assert is_quick(step)
    assert step.latency is not None and step.latency.max_s >= 1.0


def test_rate_when_there_are_too_few_connections() -> None:
    """All connections hang: what could not be sent in time counts as well."""
    with load_server(lambda asked: Reply(delay_s=60.0 if asked.number > 1 else 0.0)) as server:
        file = measured(server, rate_per_s=100.0, timeout_s=0.5)
    step = reported(file)
    assert 99 <= step.num_requests <= 101
    assert step.num_answered == 0
    assert {error.kind for error in step.errors} <= {"timeout", "unsent"}
    assert file.finding is not None and file.finding.rule == "loadtest-all-failed"


def test_timeout_when_the_answer_comes_byte_by_byte() -> None:
    with load_server(lambda asked: Reply(byte_s=0.1 if asked.number > 1 else 0.0)) as server:
        step = reported(measured(server, timeout_s=0.5))
    assert step.num_answered == 0 and {error.kind for error in step.errors} == {"timeout"}


def test_errors_when_there_are_several_kinds() -> None:
    def reply(asked: Asked) -> Reply:
        kinds = {4: Reply(b"too large", status=422), 5: Reply(is_closed=True),
                 6: Reply(b'{"predictions": [8]}')}  # fmt: skip
        return kinds.get(asked.number % 10, Reply(delay_s=0.005))

    with load_server(reply) as server:
        file = measured(server, users=2, check='{"predictions": [7]}')
    step = reported(file)
    kinds = {error.kind: error for error in step.errors}
    assert set(kinds) == {"status", "connection", "wrong answer"}
    assert kinds["status"].status == 422 and kinds["status"].example == "too large"
    for error in step.errors:
        assert 0.05 < error.count / step.num_requests < 0.15
    assert file.finding is None


def test_errors_when_the_server_redirects() -> None:
    """An answer elsewhere is none: the search must not take a fast redirect for a fast answer."""

    def reply(asked: Asked) -> Reply:
        if asked.number > 2 and asked.number % 2:
            return Reply(b"", status=307, location="/elsewhere")
        return Reply(delay_s=0.005)

    with load_server(reply) as server:
        step = reported(measured(server))
    [error] = step.errors
    assert (error.kind, error.status) == ("status", 307)
    assert error.example == "redirects to /elsewhere"
    assert step.num_answered > 0 and step.num_answered + error.count == step.num_requests


def test_errors_when_the_server_dies() -> None:
    def reply(asked: Asked) -> Reply:
        # Far behind the warm-up, however slowly that goes.
        if asked.number == 400:
            threading.Thread(target=server.stop).start()
        return Reply(delay_s=0.005)

    with load_server(reply) as server:
        file = measured(server, users=2, duration_s=30.0)
    assert file.finding is not None and file.finding.rule == "loadtest-server-gone"
    step = reported(file)
    assert step.num_answered > 50 and step.errors[0].kind == "connection"
    # Not to the end of the thirty seconds.
    assert step.measured_s < 25


def test_search_when_the_server_slows_down_with_users() -> None:
    """One request at a time, 100 ms each: with n users the latency is n times 100 ms."""
    free_at = [0.0]

    def reply(asked: Asked) -> Reply:
        now = asked.at_s
        free_at[0] = max(free_at[0], now) + 0.1
        return Reply(delay_s=free_at[0] - now)

    def has_found(file: LoadFile) -> bool:
        return file.best is not None and reported(file).users in (4, 5)

    with load_server(reply) as server:
        # Five users have 50 ms to the limit, and four 150 ms: next to other programs, one request
        # may take longer by that.
        file = first_good(
            lambda: measured(server, until_latency_s=0.55, duration_s=2.5), has_found, most_calls=3
        )
    assert has_found(file)
    step = reported(file)
    assert step.is_held
    assert any(not one.is_held for one in file.steps)
    assert step.latency is not None and step.latency.p99_s <= 0.55


def test_inputs_when_there_are_several(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("[1]\n[2]\n[3]\n")
    (tmp_path / "out.jsonl").write_text("[1]\n[2]\n[3]\n")
    with load_server(lambda asked: Reply(asked.body, delay_s=0.01)) as server:
        step = reported(
            measured(
                server, users=3, input=str(tmp_path / "in.jsonl"),
                check=str(tmp_path / "out.jsonl"),
            )
        )  # fmt: skip
    assert step.num_errors == 0
    assert {asked.body for asked in server.asked[-10:]} == {b"[1]", b"[2]", b"[3]"}


def test_metrics_when_the_server_is_of_flatout() -> None:
    def reply(asked: Asked) -> Reply:
        if asked.path == "/metrics":
            return Reply(b"flatout_serve_queue_requests 4\n", content_type="text/plain")
        return flatout_pages(asked) or Reply(delay_s=0.01)

    with load_server(reply) as server:
        file = measured(server, input=None, duration_s=2.0)
    assert file.settings.server == "flatout 0.1.0"
    server_load = reported(file).server
    assert server_load is not None and server_load.max_queue_depth == 4


def test_interrupted_when_some_seconds_were_measured() -> None:
    with load_server(lambda asked: Reply(delay_s=0.01)) as server:
        request = LoadRequest(url=server.url, input="[1]", warmup_s=0.2, duration_s=60.0)
        with LoadTest(request) as test:
            for event in test.events():
                if isinstance(event, LoadProgress) and event.tick and event.tick.at_s >= 2:
                    break
            test.interrupt()
            file = test.result()
    assert file.is_interrupted and file.finding is None
    # Of two seconds, not of sixty: one user, who waits 10 ms for each.
    assert 10 < reported(file).num_requests < 1000


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "flatout", "loadtest", *words]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(SRC)}


def test_command_when_it_writes_and_compares(tmp_path: Path) -> None:
    with load_server(lambda asked: Reply(delay_s=0.01)) as server:
        for name in ("a.json", "b.json"):
            done = subprocess.run(
                command(
                    server.url, "--input", "[1]", "--duration", "2s", "--warmup", "200ms",
                    "--output", str(tmp_path / name), "--output", str(tmp_path / "r.html"),
                ),
                env=environment(), capture_output=True, text=True, timeout=180, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            assert "throughput" in done.stdout and "p99.9" in done.stdout
    done = subprocess.run(
        command("compare", str(tmp_path / "a.json"), str(tmp_path / "b.json"), "--json"),
        env=environment(), capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    names = [change["name"] for change in json.loads(done.stdout)["changes"]]
    assert names == ["throughput", "p50", "p90", "p99"]
    assert "Answers over time" in (tmp_path / "r.html").read_text()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows sends Ctrl-C to a whole console")
def test_command_when_it_is_interrupted() -> None:
    with load_server(lambda asked: Reply(delay_s=0.01)) as server:
        process = subprocess.Popen(
            command(server.url, "--input", "[1]", "--duration", "60s", "--json"),
            env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stderr is not None
        for line in process.stderr:
            if line.strip().startswith("2 s"):
                break
        process.send_signal(signal.SIGINT)
        printed, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    assert json.loads(printed)["is_interrupted"] is True


def test_command_when_there_is_no_server() -> None:
    done = subprocess.run(
        command("http://127.0.0.1:9", "--input", "1"),
        env=environment(), capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "no web server answers" in done.stderr and "Traceback" not in done.stderr
