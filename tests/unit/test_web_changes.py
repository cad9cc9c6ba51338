"""Trainings that are planned, started and stopped from the pages of `flatout web`."""

from __future__ import annotations

import json
import queue
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.web_runs import (
    FORM_TOKEN,
    MACHINE,
    new_run,
    progress,
    started,
    web_client,
    whole_run,
)

from flatout.runs.supervisor import Supervisor
from flatout.schema.finding import Finding
from flatout.system.store.run_folder import RunFolder
from flatout.system.store.run_tail import RunTail
from flatout.web.run_changes import OnceByKey, _follow

KEY = re.compile(r'name="key" value="([^"]+)"')
OWN = {"origin": "http://127.0.0.1:8420"}
MINE = '''
from typing import Literal

def experiment(steps_in: int, act: Literal["relu", "gelu"] = "relu", big: bool = False,
               scale: float = 0.5, note: str | None = None, layers: list = []):
    """A network.

    Args:
        steps_in: number of inputs.
    """
'''


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which flatout web was started."""
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path / "state"))
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    return here


def document(query: str) -> Any:
    return json.loads(web_client().get(f"/train.json{query}").text)


def post(path: str, client: Any = None, **form: str) -> Any:
    client = client or web_client()
    return client.post(path, data={"form_token": FORM_TOKEN, **form}, headers=OWN)


def test_train_lists_built_ins_and_experiment_files(folder: Path) -> None:
    (folder / "mine.py").write_text(MINE)
    (folder / "other.py").write_text("print(1)\n")
    (folder / "damaged.py").write_bytes(b"\xff\xff")
    (folder / "folder.py").mkdir()
    known = document("")
    assert "digits" in known["built_ins"] and known["files"] == ["mine.py"]
    assert known["fields"] == [] and known["plan"] is None


def test_train_has_a_typed_field_for_each_parameter(folder: Path) -> None:
    (folder / "mine.py").write_text(MINE)
    fields = {field["name"]: field for field in document("?experiment=mine.py")["fields"]}
    kinds = {name: field["kind"] for name, field in fields.items()}
    assert kinds == {"steps_in": "int", "act": "choice", "big": "choice", "scale": "float",
                     "note": "text", "layers": "fixed"}  # fmt: skip
    assert fields["steps_in"]["is_required"] and fields["act"]["choices"] == ["relu", "gelu"]
    text = web_client().get("/train?experiment=mine.py").text
    assert "number of inputs." in text and 'type="number" step="any"' in text


def test_plan_shows_what_would_be_started(folder: Path) -> None:
    (folder / "mine.py").write_text(MINE)
    query = "?experiment=mine.py&s.steps_in=3&s.act=gelu&s.scale=&epochs=2&device=cpu&plan=1"
    plan = document(query)["plan"]
    assert plan["parameters"]["steps_in"] == 3 and plan["parameters"]["scale"] == 0.5
    assert plan["changed"] == ["steps_in", "act"] and plan["epochs"] == 2
    assert plan["file"] == str(folder / "mine.py")
    command = "flatout train mine.py -s steps_in=3 -s act=gelu --use device=cpu --epochs 2"
    assert plan["command"] == command
    assert command in web_client().get(f"/train{query}").text


@pytest.mark.parametrize(
    ("query", "rule"),
    [
        ("s.steps_in=many", "bad-parameter-value"), ("", "parameter-missing"),
        ("s.steps_in=1&s.depth=2", "unknown-parameter"),
        ("s.steps_in=1&epochs=0", "wrong-usage"), ("s.steps_in=1&epochs=x", "wrong-usage"),
        ("s.steps_in=1&device=tpu", "bad-recipe-value"),
    ],
)  # fmt: skip
def test_plan_that_is_refused_keeps_the_form(folder: Path, query: str, rule: str) -> None:
    (folder / "mine.py").write_text(MINE)
    known = document(f"?experiment=mine.py&plan=1&{query}")
    assert known["problem"]["rule"] == rule and known["plan"] is None
    assert len(known["fields"]) == 6


def test_refused_form_without_parameters_is_shown_again(folder: Path) -> None:
    (folder / "mine.py").write_text("def experiment():\n    ...\n")
    text = web_client().get("/train?experiment=mine.py&epochs=0&device=cuda:3&plan=1").text
    assert "is not a number of epochs" in text and 'value="0"' in text
    assert "<option selected>cuda:3</option>" in text


@pytest.mark.parametrize("name", ["../mine.py", "/etc/mine.py", "./here.py", "nothing", "here"])
def test_experiment_is_never_a_path(folder: Path, name: str) -> None:
    (folder.parent / "mine.py").write_text(MINE)
    (folder / "here.py").write_text(MINE)
    known = document(f"?experiment={name}&s.steps_in=1&plan=1")
    assert known["problem"]["rule"] == "unknown-experiment" and known["plan"] is None
    answer = post("/train", experiment=name)
    assert answer.status_code == 400 and "there is no experiment" in answer.text


def test_parameters_are_escaped(folder: Path) -> None:
    (folder / "mine.py").write_text(MINE.replace("number of inputs.", "<script>x</script>"))
    query = "?experiment=mine.py&s.steps_in=1&s.note=<script>y</script>&plan=1"
    text = web_client().get(f"/train{query}").text
    assert "&lt;script&gt;x" in text and "&lt;script&gt;y" in text
    assert "<script>x" not in text and "<script>y" not in text


def test_resume_shows_its_plan() -> None:
    new_run("digits-0001", [started()], [progress(10)])
    plan = document("?resume=digits-0001&plan=1&epochs=9&device=cpu")["plan"]
    assert plan["from_step"] == 0 and plan["epochs"] == 9
    assert plan["command"].startswith("flatout train --resume digits-0001")
    assert "/train?resume=digits-0001&amp;plan=1" in web_client().get("/runs/digits-0001").text


def test_run_is_resumed_where_it_was_trained_last() -> None:
    new_run("digits-0001", [started(on="local:2", leave_free_bytes=3 << 29)], [progress(10)])
    plan = document("?resume=digits-0001&plan=1&epochs=9")["plan"]
    command = "flatout train --resume digits-0001 --epochs 9 --leave-free 1.5GiB --on local:2"
    assert plan["command"] == command


def test_run_can_be_resumed_after_it_could_not_be_followed() -> None:
    class Lost:
        def is_running(self) -> bool:
            raise OSError("the disk is gone")

        def exit_code(self) -> int | None:
            return None

        def kill(self) -> None:
            pass

    folder = new_run("digits-0001", [started()])
    assert folder.attended.acquire()
    supervisor = Supervisor(
        folder=folder, machine=MACHINE, worker=Lost(), start=lambda _: Lost(), tail=RunTail(folder)
    )
    said: queue.SimpleQueue[Finding | None] = queue.SimpleQueue()
    _follow(supervisor, said)
    finding = said.get_nowait()
    assert finding is not None and "the disk is gone" in finding.problem + str(finding.because)
    assert not RunFolder(folder.path).is_in_use()


def test_run_of_a_notebook_is_resumed_there() -> None:
    new_run("notebook-0001", [started()], [progress(10)], name="notebook")
    text = web_client().get("/runs/notebook-0001").text
    assert "/train?resume" not in text and "resume=&#34;notebook-0001&#34;" in text


@pytest.mark.parametrize(
    ("run", "rule"), [("digits-0001", "run-is-finished"), ("digits-0009", "unknown-run")]
)
def test_resume_that_is_refused(run: str, rule: str) -> None:
    whole_run()
    assert document(f"?resume={run}&plan=1")["problem"]["rule"] == rule
    answer = post("/train", resume=run)
    assert answer.status_code == 400 and rule in answer.text


def test_running_run_can_be_stopped_and_not_resumed() -> None:
    folder = new_run("digits-0001", [started()], [progress(10)])
    lock = folder.lock()
    assert lock.acquire()
    try:
        text = web_client().get("/runs/digits-0001").text
        assert ">Stop</button>" in text and "/train?resume" not in text
        assert document("?resume=digits-0001&plan=1")["problem"]["rule"] == "run-in-use"
        answer = post("/runs/digits-0001")
        assert answer.status_code == 303 and answer.headers["location"] == "/runs/digits-0001"
        assert folder.stop.exists()
        text = web_client().get("/runs/digits-0001").text
        assert "A stop was requested" in text and ">Stop</button>" not in text
        assert document("?resume=digits-0001&plan=1")["problem"]["rule"] == "run-in-use"
    finally:
        lock.release()


def test_run_that_is_not_running_is_not_stopped() -> None:
    folder = whole_run()
    assert post("/runs/digits-0001").status_code == 400 and not folder.stop.exists()
    assert post("/runs/digits-0009").status_code == 404


def test_plan_has_another_key_each_time() -> None:
    keys = [KEY.findall(web_client().get("/train?experiment=digits&plan=1").text) for _ in range(2)]
    assert len(keys[0]) == len(keys[1]) == 1 and keys[0] != keys[1]


def test_form_that_is_sent_again_while_it_is_carried_out() -> None:
    once: OnceByKey[str] = OnceByKey()
    num_done, may_end = 0, threading.Event()

    def start() -> str:
        nonlocal num_done
        num_done += 1
        may_end.wait(120)
        return f"digits-000{num_done}"

    with ThreadPoolExecutor(3) as threads:
        found = [threads.submit(once.result, "key", start) for _ in range(3)]
        other = once.result("another key", lambda: "other")
        may_end.set()
    assert [one.result() for one in found] == 3 * ["digits-0001"] and other == "other"
    assert once.result("key", start) == "digits-0001" and num_done == 1


def test_form_that_failed_can_be_sent_again() -> None:
    once: OnceByKey[str] = OnceByKey()

    def fail() -> str:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        once.result("key", fail)
    assert once.result("key", lambda: "digits-0001") == "digits-0001"
    assert once.result("key", fail) == "digits-0001"
    assert [once.result("", name.upper) for name in "ab"] == ["A", "B"]


def test_keys_that_are_kept_are_limited() -> None:
    once: OnceByKey[int] = OnceByKey()
    for number in range(2500):
        once.result(str(number), lambda: 0)
    assert len(once._done) == 1000


def test_nothing_is_started_or_stopped_when_read_only() -> None:
    client = web_client(is_read_only=True)
    folder = new_run("digits-0001", [started()], [progress(10)])
    lock = folder.lock()
    assert lock.acquire()
    try:
        assert ">Stop</button>" not in client.get("/runs/digits-0001").text
        assert post("/runs/digits-0001", client).status_code == 403 and not folder.stop.exists()
    finally:
        lock.release()
    text = client.get("/train?experiment=digits&plan=1").text
    assert "read-only" in text and 'action="/train">\n<input type="hidden" name="form_t' not in text
    assert post("/train", client, experiment="digits").status_code == 403
    assert post("/serve", client, port="1", kind="text", input="a").status_code == 403
    assert client.get("/runs.json").json()["num_runs"] == 1
