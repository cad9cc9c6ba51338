"""Trainings that are started, stopped and resumed from the pages of `flatout web`."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.web_runs import FORM_TOKEN, web_client

LIMIT_S = 180.0
OWN = {"origin": "http://127.0.0.1:8420"}
BROKEN = """
def experiment(width: int = 3):
    raise ValueError("width <3> is not supported")
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def client() -> Iterator[Any]:
    with web_client() as opened:
        yield opened


def post(client: Any, path: str, **form: str) -> Any:
    return client.post(path, data={"form_token": FORM_TOKEN, **form}, headers=OWN)


def wait_for(client: Any, run: str, wanted: str, step: int = 0) -> Any:
    """The run's document once it has this status and is past that step; it may search first."""
    end_s = time.monotonic() + LIMIT_S
    while time.monotonic() < end_s:
        document = client.get(f"/runs/{run}.json").json()
        if document["run"]["status"] == wanted and document["run"]["step"] >= step:
            return document
        time.sleep(0.2)
    raise AssertionError(document["run"]["status"])


def test_training_is_started_stopped_and_resumed(client: Any) -> None:
    settings = {"s.epochs": "120", "s.width": "64", "s.lr": "0.001"}
    form = {"experiment": "digits", "device": "cpu", **settings}
    answer = post(client, "/train", **form)
    assert answer.status_code == 303, answer.text
    assert answer.headers["location"] == "/runs/digits-0001"
    document = wait_for(client, "digits-0001", "running", step=1)
    assert document["parameters"]["lr"] == 0.001
    assert post(client, "/runs/digits-0001").status_code == 303
    stopped = wait_for(client, "digits-0001", "stopped")
    step = stopped["run"]["step"]
    assert step > 0
    plan = client.get("/train.json?resume=digits-0001&plan=1").json()["plan"]
    assert plan["from_step"] == step
    answer = post(client, "/train", resume="digits-0001")
    assert answer.status_code == 303, answer.text
    wait_for(client, "digits-0001", "running", step=step + 1)
    assert post(client, "/runs/digits-0001").status_code == 303
    assert wait_for(client, "digits-0001", "stopped")["run"]["step"] > step


def test_form_that_is_sent_twice_starts_one_training(client: Any) -> None:
    plan = client.get("/train?experiment=digits&device=cpu&s.epochs=1&plan=1").text
    (key,) = re.findall(r'name="key" value="([^"]+)"', plan)
    form = {"experiment": "digits", "device": "cpu", "s.epochs": "1", "key": key}
    # Without JavaScript, a browser sends it again at the second click.
    with ThreadPoolExecutor(2) as threads:
        answers = [threads.submit(post, client, "/train", **form) for _ in range(2)]
    for answer in answers:
        assert answer.result().status_code == 303, answer.result().text
        assert answer.result().headers["location"] == "/runs/digits-0001"
    assert client.get("/runs.json").json()["num_runs"] == 1
    wait_for(client, "digits-0001", "finished")


def test_experiment_that_fails_says_why_and_leaves_no_run(client: Any, here: Path) -> None:
    (here / "broken.py").write_text(BROKEN)
    answer = post(client, "/train", **{"experiment": "broken.py", "s.width": "5"})
    assert answer.status_code == 400
    assert "width &lt;3&gt; is not supported" in answer.text and 'value="5"' in answer.text
    assert client.get("/runs.json").json()["num_runs"] == 0
