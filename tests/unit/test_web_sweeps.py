"""The pages of sweeps of `flatout web`: all sweeps; a sweep with its trials and pictures."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.web_runs import new_run, started, validated, web_client, whole_run
from support.web_sweeps import LR, NAME, new_sweep, trial, trial_run, whole_sweep

from flatout.runs.sweep.result import sweep_in
from flatout.schema.finding import Finding
from flatout.schema.sweep import Choices, Range
from flatout.schema.web_request import WebExport
from flatout.web import api as web_api
from flatout.web.sweep_cache import SweepCache
from flatout.web.sweep_page import range_text
from flatout.web.texts import LANGUAGES

HAS_OPTUNA = importlib.util.find_spec("optuna") is not None
needs_optuna = pytest.mark.skipif(not HAS_OPTUNA, reason="needs the package optuna")
ATTACK = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path / "state"))
    return tmp_path


def page(path: str = f"/sweeps/{NAME}", **more: Any) -> str:
    answer = web_client().get(path, **more)
    assert answer.status_code == 200, answer.text[-500:]
    return answer.text


def document(path: str = f"/sweeps/{NAME}.json") -> Any:
    answer = web_client().get(path)
    assert answer.headers["content-type"] == "application/json"
    return json.loads(answer.text)


def facts() -> Any:
    return document()["sweep"]["value"]


@pytest.mark.parametrize("language", LANGUAGES)
def test_list_without_any_sweep(language: str) -> None:
    text = page("/sweeps", headers={"accept-language": language})
    assert f'<html lang="{language}">' in text and "flatout sweep digits" in text


@pytest.mark.parametrize("language", LANGUAGES)
def test_sweep_in_each_language(language: str) -> None:
    whole_sweep()
    assert f'<html lang="{language}">' in page(headers={"accept-language": language})


def test_list_shows_state_counts_and_best_value() -> None:
    whole_sweep("a-sweep-0001")
    new_sweep("b-sweep-0001", [trial(1, 0.5), trial(2, status="failed"), trial(3, status="pruned")])
    new_sweep("c-sweep-0001", [trial(1, status="failed")], num_trials=1, metric=None)
    rows = {row["id"]: row for row in document("/sweeps.json")["sweeps"]}
    assert {name[0]: row["status"] for name, row in rows.items()} == {
        "a": "finished", "b": "interrupted", "c": "failed"
    }  # fmt: skip
    assert rows["a-sweep-0001"]["best_value"] == 0.9
    counts = {"finished": 1, "failed": 1, "pruned": 1, "stopped": 0}
    assert rows["b-sweep-0001"]["counts"] == counts and rows["b-sweep-0001"]["num_trials"] == 4
    assert rows["c-sweep-0001"]["best_value"] is None
    text = page("/sweeps")
    assert "90.0 %" in text and 'href="/sweeps/a-sweep-0001"' in text and "digits" in text


def test_list_has_pages() -> None:
    for number in range(1, 53):
        new_sweep(f"s-{number:04d}")
    assert len(document("/sweeps.json")["sweeps"]) == 50
    second = document("/sweeps.json?page=2")
    assert len(second["sweeps"]) == 2 and second["num_pages"] == 2 and second["num_found"] == 52
    assert 'rel="prev"' in page("/sweeps?page=2") and 'rel="next"' in page("/sweeps")


def test_damaged_sweep_leaves_the_rest_of_the_list() -> None:
    whole_sweep("a-sweep-0001")
    new_sweep("b-sweep-0001").header.write_text("{")
    rows = {row["id"]: row for row in document("/sweeps.json")["sweeps"]}
    assert rows["a-sweep-0001"]["status"] == "finished"
    assert rows["b-sweep-0001"]["status"] == "unreadable"
    assert rows["b-sweep-0001"]["problem"]["rule"] == "sweep-damaged"
    text = page("/sweeps")
    assert "the files of sweep b-sweep-0001 cannot be read." in text and "90.0 %" in text


def test_sweep_shows_its_trials_the_best_first() -> None:
    whole_sweep()
    known = facts()
    assert [row["trial"] for row in known["trials"]] == [3, 2, 1, 4]
    assert known["best"]["trial"] == 3 and known["best_value"] == 0.9
    assert known["space"] == {"lr": "0.001..0.1:log", "batch_size": "32,64,128"}
    text = page()
    places = [text.index(f'<th scope="row"><a href="/runs/{NAME}-{n:03d}"') for n in (3, 2, 1, 4)]
    assert places == sorted(places)
    assert "larger is better" in text and "width=8" in text


def test_best_trial_is_a_command() -> None:
    whole_sweep()
    assert facts()["commands"]["again"].startswith("flatout train digits")
    assert f"flatout sweep show {NAME}" in page() and "--resume" not in page()


def test_interrupted_sweep_has_the_command_that_resumes_it() -> None:
    new_sweep(trials=[trial(1, 0.5)])
    assert f"flatout sweep --resume {NAME}" in page()


def test_sweep_runs_while_its_lock_is_held() -> None:
    folder = new_sweep(trials=[trial(1, 0.5)])
    assert facts()["status"] == "interrupted"
    with folder.locked():
        known = facts()
    assert known["status"] == "running" and "resume_sweep" not in known["commands"]


def test_trial_that_has_not_ended_is_read_from_its_run() -> None:
    new_sweep(trials=[trial(1, 0.5), trial(2)])
    trial_run(1, 0.5)
    new_run(f"{NAME}-002", [started()], [validated(10, 0.6), validated(20, 0.55)])
    second = facts()["trials"][1]
    assert (second["trial"], second["status"], second["value"]) == (2, "interrupted", 0.6)


def test_only_runs_that_exist_are_links() -> None:
    new_sweep(trials=[trial(1, 0.5), trial(2, 0.6)])
    trial_run(1, 0.5)
    text = page()
    assert f'href="/runs/{NAME}-001"' in text
    assert f'href="/runs/{NAME}-002"' not in text and f"{NAME}-002" in text


def test_failed_trial_shows_why() -> None:
    finding = Finding(rule="out-of-memory", severity="error", problem="The GPU is full.")
    new_sweep(trials=[trial(1, status="failed", finding=finding)])
    text = page()
    assert "The GPU is full." in text and "No trial" not in text


def test_sweep_without_any_trial() -> None:
    new_sweep(metric=None, direction=None)
    text = page()
    assert "No trial has started yet." in text and "At least two trials" in text


def test_many_trials_are_cut_but_not_those_that_run() -> None:
    trials = [trial(number, 0.5) for number in range(1, 503)]
    new_sweep(trials=[*trials, trial(503)], num_trials=600)
    lock = new_run(f"{NAME}-503", [started()]).lock()
    assert lock.acquire()
    known, text = facts(), page()
    lock.release()
    assert len(known["trials"]) == 501 and known["trials"][-1]["trial"] == 503
    assert known["num_left_out"] == 2 and "2 more trials are in the list of runs." in text


def test_parallel_coordinates_have_an_axis_for_each_parameter_and_the_metric() -> None:
    whole_sweep()
    parallel = facts()["parallel"]["value"]
    rate, size, accuracy = parallel["axes"]
    assert [rate["name"], size["name"], accuracy["name"]] == ["lr", "batch_size", "accuracy"]
    # 0.01 is in the middle of 0.001 ... 0.1 on a logarithmic scale.
    assert rate["heights"][0] == pytest.approx(0.5) and rate["marks"] == [[0, "0.001"], [1, "0.1"]]
    assert size["heights"] == [0.5, 0.5, 0, 1] and len(size["marks"]) == 3
    assert accuracy["heights"][0] == 1 and accuracy["heights"][3] == 0
    assert [line["run"][-1] for line in parallel["lines"]] == ["3", "2", "1", "4"]


def test_parallel_coordinates_draw_the_best_trial_last() -> None:
    whole_sweep()
    text = page()
    lines = re.findall(r'<g><title>([^<]*)</title><path class="([^"]*)"', text)
    assert len(lines) == 4
    assert lines[-1] == (f"{NAME}-003: accuracy 90.0 %", "curve color-1 best")
    assert 'aria-label="Parallel coordinates of the finished trials' in text


def test_damaged_sweep_shows_its_problem_in_its_place() -> None:
    folder = whole_sweep()
    folder.trials.write_text(folder.trials.read_text().partition("\n")[2])
    text = page()
    assert "a trial is missing" in text and f"where=sweep%3D{NAME}" in text
    assert document()["sweep"]["problem"]["rule"] == "sweep-damaged"


@pytest.mark.parametrize(
    "parameters", [{"lr": 0.01}, {"lr": 0.01, "batch_size": 7}, {"lr": "x", "batch_size": 32}]
)
def test_trial_with_other_parameters_leaves_the_table(parameters: dict[str, Any]) -> None:
    trials = [trial(number, number / 10) for number in (1, 2, 3, 4)]
    trials[0] = msgspec.structs.replace(trials[0], parameters=parameters)
    new_sweep(trials=trials)
    known = facts()
    assert known["parallel"]["problem"]["rule"] == "sweep-damaged"
    assert known["importances"]["problem"]["rule"] in ("sweep-damaged", "optuna-not-installed")
    assert len(known["trials"]) == 4
    assert "cannot be read" in page()


def test_names_and_values_are_escaped() -> None:
    space = {"lr": LR, ATTACK: Choices(values=(ATTACK, "b"))}
    finding = Finding(rule="x", severity="error", problem=ATTACK)
    parameters = {"lr": 0.01, ATTACK: ATTACK}
    new_sweep(
        trials=[trial(1, 0.5, parameters=parameters), trial(2, 0.6, parameters=parameters),
                trial(3, status="failed", parameters=parameters, finding=finding)],
        space=space, metric=ATTACK,
    )  # fmt: skip
    for path in (f"/sweeps/{NAME}", "/sweeps"):
        text = page(path)
        assert "<script>alert" not in text and "<img" not in text
        assert "&lt;script&gt;" in text


@pytest.mark.parametrize(
    "name", ["gone", NAME[:-1], "last", "..%2Fsweeps%2Fdigits-sweep-0001", "%2e%2e", "gone.json"]
)
def test_address_takes_whole_names_of_existing_sweeps_only(name: str) -> None:
    whole_sweep()
    answer = web_client().get(f"/sweeps/{name}")
    assert answer.status_code == 404


def test_name_may_end_like_a_document() -> None:
    new_sweep("s.json")
    assert "<h1>s.json" in page("/sweeps/s.json")
    assert document("/sweeps/s.json.json")["id"] == "s.json"


def test_importances_without_optuna_say_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    whole_sweep()
    text = page()
    assert "pip install" in text and "flatout[sweep]" in text and "90.0 %" in text
    assert facts()["importances"]["problem"]["rule"] == "optuna-not-installed"


@needs_optuna
def test_importances_are_shares_and_are_kept() -> None:
    folder = whole_sweep()
    shares = facts()["importances"]["value"]
    assert shares.keys() == {"lr", "batch_size"} and sum(shares.values()) == pytest.approx(1)
    assert page().count('<rect class="share"') == 2
    cache, sweep = SweepCache(), sweep_in(folder)
    first = cache.importances(sweep)
    assert cache.importances(sweep_in(folder)) is first
    with folder.trials.open("ab") as file:
        file.write(msgspec.json.encode(trial(5, 0.1)) + b"\n")
    assert cache.importances(sweep_in(folder)) is not first


def test_run_has_a_link_to_its_sweep() -> None:
    trial_run(1, 0.5)
    assert f'href="/sweeps/{NAME}"' not in page(f"/runs/{NAME}-001")
    new_sweep(trials=[trial(1, 0.5)])
    assert f'href="/sweeps/{NAME}"' in page(f"/runs/{NAME}-001")
    whole_run()
    assert "/sweeps/" not in page("/runs/digits-0001")


def test_copy_of_runs_has_no_links_to_sweeps(tmp_path: Path) -> None:
    whole_sweep()
    web_api.export(WebExport(folder=str(tmp_path / "copy"), runs=(f"{NAME}-001",)))
    for path in (tmp_path / "copy").rglob("*.html"):
        assert "sweeps" not in path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("ends", "text"),
    [
        (Range(low=1, high=9, step=1, is_int=True), "1..9"),
        (Range(low=2, high=8, step=2, is_int=True), "2..8:step=2"),
        (Range(low=0.0, high=0.5, step=0.1), "0.0..0.5:step=0.1"),
        (Range(low=0.1, high=1.0, is_log=True), "0.1..1.0:log"),
        (Choices(values=("relu", True, 3)), "relu,true,3"),
    ],
)
def test_range_is_shown_as_it_is_typed(ends: Range | Choices, text: str) -> None:
    assert range_text(ends) == text
