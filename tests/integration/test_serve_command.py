"""`flatout serve` of trained runs, from the command line: requests, swaps, deaths, and the stop."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from support.served_runs import Place, servers, trained_place

pytest.importorskip("uvicorn")
pytest.importorskip("swagger_ui_bundle")


def is_same(document: Any, other: Any) -> bool:
    """Whether predictions are equal but for rounding: a new replica may compute otherwise."""
    (row,), (other_row,) = document["predictions"][0], other["predictions"][0]
    close = pytest.approx(other_row["probability"], rel=1e-4)
    return row["probability"] == close and document["model"] == other["model"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return trained_place(tmp_path_factory.mktemp("serve"))


@pytest.fixture
def serve(place: Place) -> Iterator[Any]:
    with servers(place) as start:
        yield start


def test_run_answers_requests_and_stops_in_good_order(serve: Any) -> None:
    served = serve("first")
    assert served.ready["model"]["name"] == "first"
    assert served.ready["model"]["device"] == "cpu"
    status, document = served.predict()
    assert status == 200, document
    assert served.predict({"nothing": "of this"})[0] == 400
    assert served.predict({"input": [1, 2]})[0] == 422
    with urllib.request.urlopen(f"{served.url}/v2/health/ready", timeout=120) as response:
        assert response.status == 200
    assert served.stop() == 0
    stopped = served.wait_for("stopped")
    assert stopped["num_answered"] >= 1 and stopped["num_lost"] == 0
    assert not list((served.place.folder / "state" / "servers").iterdir())


def test_printed_curl_gets_an_answer(serve: Any) -> None:
    if shutil.which("curl") is None:
        pytest.skip("needs curl")
    served = serve("first")
    done = subprocess.run(
        f"{served.ready['example']} --fail --silent", shell=True, capture_output=True, timeout=180,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert is_same(json.loads(done.stdout), served.predict()[1])


def test_swap_and_back(serve: Any, place: Place) -> None:
    served = serve("first")
    before = served.predict()[1]
    done = place.run("serve", "swap", "second", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["model"]["name"] == "second"
    after = served.predict()[1]
    assert after != before
    assert place.run("serve", "swap", "--back").returncode == 0
    assert is_same(served.predict()[1], before)
    assert [event["model"]["name"] for event in served.events if event["event"] == "swapped"] == [
        "second", "first",
    ]  # fmt: skip
    done = place.run("serve", "swap", "nowhere")
    assert done.returncode == 2 and "there is no run `nowhere`" in done.stderr


def test_killed_replica_is_started_again(serve: Any) -> None:
    served = serve("first")
    before = served.predict()[1]
    replicas = psutil.Process(served.process.pid).children()
    assert len(replicas) == 1
    replicas[0].kill()
    served.wait_for("replica-lost")
    # It waits for the new one.
    assert is_same(served.predict()[1], before)
    served.wait_for("replica-restored")


def test_replicas_end_when_the_server_is_killed(serve: Any) -> None:
    served = serve("first")
    replicas = psutil.Process(served.process.pid).children(recursive=True)
    served.process.kill()
    _, alive = psutil.wait_procs(replicas, timeout=120)
    assert replicas and not alive


def test_token_is_asked_for(serve: Any) -> None:
    served = serve("first", "--token", "s3cret")
    assert served.predict()[0] == 401
    assert served.predict(authorization="Bearer s3cret")[0] == 200
    assert served.predict(authorization="Bearer s3cret", host="evil.example")[0] == 421


def test_port_that_is_in_use_is_refused_at_once(serve: Any, place: Place) -> None:
    served = serve("first")
    done = place.run("serve", "first", "--port", served.url.rpartition(":")[2])
    assert done.returncode == 2 and "is already in use" in done.stderr


def test_wrong_use_is_refused(place: Place) -> None:
    done = place.run("serve", "nowhere", "--port", "0")
    assert done.returncode == 2 and "there is no run `nowhere`" in done.stderr
    done = place.run("serve", "first", "--port", "0", "--use", "precision=fp99")
    assert done.returncode == 2
    done = place.run("serve", "first", "--port", "0", "--latency", "20")
    assert done.returncode == 2 and "not a duration" in done.stderr
    done = place.run("serve", "swap", "first")
    assert done.returncode == 2 and "no server" in done.stderr
