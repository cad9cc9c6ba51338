"""Doctor and Explain in `flatout web`: a fix is shown, confirmed, applied and undone."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.testclient import TestClient
from support.busy_machine import wait_until
from support.web_runs import FORM_TOKEN, web_client

from flatout.errors import FlatoutError, UsageError
from flatout.schema.change_journal import UndoBegun
from flatout.schema.finding import Finding, Fix
from flatout.schema.plan import Move, Plan, PlanStep, RunProgram, Safety, Write
from flatout.system import hardlink_copy
from flatout.system.changes import api as changes_api
from flatout.web import doctor_page
from flatout.web.machine_change import ChangeProgress, MachineChanges

OWN = {"origin": "http://127.0.0.1:8420"}
FULL_SHM = (
    "RuntimeError: unable to open shared memory object </torch_4242_1932843_12> in read-write mode:"
    " No space left on device (28)"
)
ATTACK = "<script>alert(1)</script></textarea>\"'><img src=x onerror=alert(1)>"


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path / "state"))
    return tmp_path


def finding_with(*steps: PlanStep, safety: Safety = "safe") -> Finding:
    plan = Plan(goal="write the setting", steps=steps)
    fix = Fix(text="write the setting", safety=safety, plan=plan)
    return Finding(
        rule="torch-cpu-only-build", severity="warning", problem="a setting is missing.",
        fixes=(fix,),
    )  # fmt: skip


def writing(file: Path, safety: Safety = "safe") -> PlanStep:
    return PlanStep(
        text="write a file", action=Write(file=str(file), text="new\n"), changes="a file",
        safety=safety,
    )  # fmt: skip


def visit(*findings: Finding, **rules: Any) -> TestClient:
    """A browser, when the machine has been examined."""
    client = web_client(findings=findings, **rules)
    wait_until(lambda: seen(client)["is_examined"])
    return client


def seen(client: TestClient) -> Any:
    """The doctor's page as data."""
    answer = client.get("/doctor.json")
    assert answer.status_code == 200, answer.text
    return json.loads(answer.text)


def plan_of(client: TestClient) -> str:
    return str(seen(client)["findings"][0]["plan"])


def post(client: TestClient, path: str, **fields: str) -> Any:
    return client.post(path, data={"form_token": FORM_TOKEN, **fields}, headers=OWN)


def changed(client: TestClient) -> Any:
    """How the change has gone, when it has ended."""
    wait_until(lambda: not seen(client)["change"]["is_running"])
    return seen(client)["change"]


def test_fix_is_shown_then_applied_then_undone(state: Path) -> None:
    file = state / "setting"
    client = visit(finding_with(writing(file)))
    plan = plan_of(client)
    assert f'href="/doctor/plan?plan={plan}"' in client.get("/doctor").text
    shown = client.get(f"/doctor/plan?plan={plan}").text
    assert "write a file" in shown and str(file) in shown and not file.exists()
    answer = post(client, "/doctor/plan", plan=plan)
    assert (answer.status_code, answer.headers["location"]) == (303, "/doctor")
    assert [one["how"] for one in changed(client)["outcomes"]] == ["done"]
    assert file.read_text() == "new\n"
    change = seen(client)["changes"]["value"][0]
    assert (change["status"], change["goal"]) == ("done", "write the setting")
    shown = client.get(f"/doctor/undo?change={change['id']}").text
    assert "removes" in shown and "<button>Undo this change" in shown and file.exists()
    assert post(client, "/doctor/undo", change=change["id"]).status_code == 303
    assert changed(client)["problem"] is None and not file.exists()
    assert seen(client)["changes"]["value"][0]["status"] == "undone"
    assert "<button>Undo" not in client.get(f"/doctor/undo?change={change['id']}").text


def test_machine_is_examined_again_after_a_change(state: Path) -> None:
    client = visit(finding_with(writing(state / "setting")))
    before = seen(client)["examined_at"]
    post(client, "/doctor/plan", plan=plan_of(client))
    wait_until(lambda: seen(client)["examined_at"] != before)


@pytest.mark.parametrize("plan", ["", "x", "0123456789abcdef", "../../etc"])
def test_plan_that_nobody_suggested(state: Path, plan: str) -> None:
    client = visit(finding_with(writing(state / "setting")))
    assert client.get(f"/doctor/plan?plan={plan}").status_code == 404
    answer = post(client, "/doctor/plan", plan=plan)
    assert answer.status_code == 400 and "web-plan-gone" in answer.text
    assert not (state / "setting").exists()


def test_plan_of_an_old_examination(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = visit(finding_with(writing(state / "setting")))
    plan = plan_of(client)
    monkeypatch.setattr(doctor_page, "_OLDEST_PLAN_S", -1.0)
    answer = post(client, "/doctor/plan", plan=plan)
    assert answer.status_code == 400 and "examined too long ago" in answer.text
    assert not (state / "setting").exists()


def test_fix_that_is_not_safe_is_only_shown(state: Path) -> None:
    client = visit(finding_with(writing(state / "setting", "ask"), safety="ask"))
    plan = plan_of(client)
    shown = client.get(f"/doctor/plan?plan={plan}").text
    assert "flatout doctor --fix" in shown and "<button>Apply" not in shown
    answer = post(client, "/doctor/plan", plan=plan)
    assert answer.status_code == 400 and "web-not-safe" in answer.text
    assert not (state / "setting").exists()


def test_nothing_is_changed_when_read_only(state: Path) -> None:
    client = visit(finding_with(writing(state / "setting")), is_read_only=True)
    plan = plan_of(client)
    assert "<button>Apply" not in client.get(f"/doctor/plan?plan={plan}").text
    for path in ("/doctor/plan", "/doctor/undo"):
        answer = post(client, path, plan=plan, change="0001")
        assert answer.status_code == 403 and "web-read-only" in answer.text
    assert not (state / "setting").exists()


def test_step_that_fails(state: Path) -> None:
    move = Move(source=str(state / "missing"), target=str(state / "target"))
    step = PlanStep(text="move", action=move, changes="a name", safety="safe")
    client = visit(finding_with(step, writing(state / "setting")))
    post(client, "/doctor/plan", plan=plan_of(client))
    assert [one["how"] for one in changed(client)["outcomes"]] == ["failed", "not started"]
    assert "not started" in client.get("/doctor").text and not (state / "setting").exists()


def test_undo_does_not_overwrite_later_changes(state: Path) -> None:
    file = state / "setting"
    client = visit(finding_with(writing(file)))
    post(client, "/doctor/plan", plan=plan_of(client))
    changed(client)
    file.write_text("mine\n")
    change = seen(client)["changes"]["value"][0]["id"]
    shown = client.get(f"/doctor/undo?change={change}").text
    assert "has changed since" in shown and "--force" in shown and "<button>Undo" not in shown
    post(client, "/doctor/undo", change=change)
    assert changed(client)["problem"]["rule"] == "changed-since"
    assert file.read_text() == "mine\n"


def test_folder_is_compared_when_its_undo_begins(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, made = state / "made", "import sys, os; os.mkdir(sys.argv[1])"
    action = RunProgram(argv=(sys.executable, "-c", made, str(folder)), makes=str(folder))
    step = PlanStep(text="make a folder", action=action, changes="a folder", safety="safe")
    client = visit(finding_with(step))
    post(client, "/doctor/plan", plan=plan_of(client))
    assert changed(client)["problem"] is None and folder.is_dir()
    change = seen(client)["changes"]["value"][0]["id"]
    (folder / "mine").write_text("mine")
    num_compared = 0
    digest = hardlink_copy.tree_digest

    def counted(root: Path) -> str:
        nonlocal num_compared
        num_compared += 1
        return digest(root)

    monkeypatch.setattr(hardlink_copy, "tree_digest", counted)
    shown = client.get(f"/doctor/undo?change={change}").text
    assert num_compared == 0 and "Folders are first compared" in shown
    post(client, "/doctor/undo", change=change)
    assert changed(client)["problem"]["rule"] == "changed-since" and num_compared == 1
    assert (folder / "mine").exists()
    # An undo that was interrupted has changed it itself.
    applied = changes_api.change_to_undo(change)
    again = msgspec.structs.replace(applied, lines=(*applied.lines, UndoBegun(at=0.0)))
    assert changes_api.compares_folders(applied) and not changes_api.compares_folders(again)


@pytest.mark.parametrize("change", ["", "0001", "../../etc"])
def test_undo_of_what_was_never_changed(change: str) -> None:
    client = visit()
    assert client.get(f"/doctor/undo?change={change}").status_code == 404
    assert "no-such-change" in post(client, "/doctor/undo", change=change).text


def test_changes_are_made_one_after_the_other() -> None:
    changes, may_end = MachineChanges(), threading.Event()

    def work() -> list[str]:
        may_end.wait(120)
        return ["restored"]

    changes.begin(ChangeProgress(goal="first"), work, lambda: None)
    with pytest.raises(UsageError) as raised:
        changes.begin(ChangeProgress(goal="second"), work, lambda: None)
    assert raised.value.rule == "changes-under-way"
    may_end.set()
    wait_until(lambda: not getattr(changes.latest(), "is_running", True))
    latest = changes.latest()
    assert latest is not None and (latest.goal, latest.outcomes) == ("first", ("restored",))


@pytest.mark.parametrize(
    ("error", "rule"),
    [
        (UsageError("changes-under-way", "no.", fix="wait"), "changes-under-way"),
        (KeyError(), "internal-error"),
    ],
)
def test_change_that_ends_early(error: FlatoutError | KeyError, rule: str) -> None:
    def work() -> list[str]:
        raise error

    changes = MachineChanges()
    changes.begin(ChangeProgress(goal="first"), work, lambda: None)
    wait_until(lambda: not getattr(changes.latest(), "is_running", True))
    latest = changes.latest()
    assert latest is not None and latest.problem is not None and latest.problem.rule == rule


def test_pasted_text_is_explained() -> None:
    text = post(visit(), "/explain", text=FULL_SHM).text
    assert "shm-too-small" in text and "No space left on device" in text and 'id="causes"' in text


def test_explanation_as_json_when_read_only() -> None:
    answer = post(visit(is_read_only=True), "/explain.json", text=FULL_SHM)
    rules = [one["rule"] for one in answer.json()["diagnosis"]["findings"]]
    assert answer.status_code == 200 and "shm-too-small" in rules


@pytest.mark.parametrize("text", ["", "   ", "nothing is wrong", "\0\ud7ff", "x" * 900_000])
def test_text_without_a_cause(text: str) -> None:
    answer = post(visit(), "/explain", text=text)
    assert answer.status_code == 200 and "No known cause" in answer.text


@pytest.mark.parametrize("text", ["日" * 900_000, "🔥" * 450_000, "a\r\n" * 450_000])
def test_text_as_long_as_the_box_takes_is_explained(text: str) -> None:
    client = visit()
    assert 'maxlength="900000"' in client.get("/explain").text
    files = {"text": (None, text), "form_token": (None, FORM_TOKEN)}
    # As the page sends it: not as an address is written.
    answer = client.post("/explain", files=files, headers=OWN)
    assert answer.status_code == 200 and "No known cause" in answer.text


@pytest.mark.parametrize("text", ["日" * 900_001, "x" * 900_001])
@pytest.mark.parametrize("path", ["/explain", "/explain.json"])
def test_text_that_is_too_long_gets_an_error_with_a_fix(path: str, text: str) -> None:
    files = {"text": (None, text), "form_token": (None, FORM_TOKEN)}
    answer = visit().post(path, files=files, headers=OWN)
    assert answer.status_code == 400 and "web-form-too-large" in answer.text
    assert "900,001 characters" in answer.text and "flatout explain FILE" in answer.text


def test_form_that_is_too_large_gets_an_error_with_a_fix() -> None:
    answer = post(visit(), "/explain", text="x" * (16 << 20))
    assert answer.status_code == 413 and "web-form-too-large" in answer.text
    assert "16.0 MiB" in answer.text


def test_path_that_is_pasted_is_not_opened(state: Path) -> None:
    (state / "secret").write_text(FULL_SHM)
    client = visit()
    assert "No known cause" in post(client, "/explain", text=str(state / "secret")).text
    answer = client.get("/explain", params={"id": str(state / "secret")})
    assert answer.status_code == 404 and "No space left" not in answer.text


def test_pasted_markup_is_escaped() -> None:
    text = post(visit(), "/explain", text=ATTACK).text
    assert "<script>alert" not in text and "<img" not in text


def test_page_of_a_rule_and_of_an_error() -> None:
    client = visit()
    for name in ("shm-too-small", "web-plan-gone"):
        assert name in client.get(f"/explain?id={name}").text
    assert msgspec.json.decode(client.get("/explain.json?id=web-plan-gone").content)["page_shown"]
