"""The pages of `flatout web`: what they show, whatever is in the folder of runs."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.testclient import TestClient
from support.web_runs import (
    CREATED_AT,
    FINDING,
    finished,
    new_run,
    progress,
    started,
    validated,
    web_client,
    whole_run,
)
from support.web_sweeps import whole_sweep

from flatout.doctor.model.diagnosis import Examined
from flatout.schema.finding import Finding
from flatout.schema.metric_curves import CurveView
from flatout.schema.run_lines import Failed, Tuned
from flatout.schema.tuning import Candidate, Decision, Interval, Result, Rung, Skip, Trial
from flatout.system import atomic_files
from flatout.system.store.run_folder import run_paths
from flatout.web.background_query import machine_health
from flatout.web.charts import ChartData, ChartLine, linear_ticks, log_ticks, picture
from flatout.web.run_cache import RunCache
from flatout.web.texts import LANGUAGES

PAGES = ("/home", "/doctor", "/explain", "/explain?id=torch-cpu-only-build", "/live", "/runs",
         "/compare", "/compare?run=digits-0001&run=digits-0002", "/runs/digits-0001", "/bench",
         "/bench/compare", "/profiles", "/train", "/train?experiment=digits&plan=1", "/cluster",
         "/serve", "/sweeps", "/sweeps/digits-sweep-0001")  # fmt: skip
IS_ROOT = hasattr(os, "geteuid") and os.geteuid() == 0


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path))
    return tmp_path


def page(path: str, **more: Any) -> str:
    answer = web_client().get(path, **more)
    assert answer.status_code == 200, answer.text[-500:]
    return answer.text


def document(path: str) -> Any:
    answer = web_client().get(path)
    assert answer.headers["content-type"] == "application/json"
    return json.loads(answer.text)


class Outline(HTMLParser):
    """Tags that were opened and not closed, ids, and headings of the first level."""

    EMPTY = ("meta", "link", "input", "br", "line", "circle", "path")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.num_h1 = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.num_h1 += tag == "h1"
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.links += [value or "" for name, value in attrs if name == "href"]
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize(
    "path", ["/home", "/doctor", "/explain", "/live", "/runs", "/compare", "/train", "/cluster",
             "/serve", "/sweeps"],
)  # fmt: skip
@pytest.mark.parametrize("language", LANGUAGES)
def test_page_without_any_run(path: str, language: str) -> None:
    text = page(path, headers={"accept-language": language})
    assert f'<html lang="{language}">' in text


@pytest.mark.parametrize("path", PAGES)
def test_page_is_well_formed_and_has_no_dead_link(path: str) -> None:
    whole_run()
    whole_run("digits-0002", 0.8)
    whole_sweep()
    outline = Outline(page(path))
    assert outline.open == [] and outline.num_h1 == 1
    assert len(set(outline.ids)) == len(outline.ids)
    for link in outline.links:
        if link.startswith("/"):
            assert web_client().get(link).status_code in (200, 307), link
        else:
            assert link.removeprefix("#") in outline.ids


@pytest.mark.parametrize("path", PAGES)
def test_page_has_a_document(path: str) -> None:
    whole_run()
    whole_run("digits-0002")
    whole_sweep()
    where, question, query = path.partition("?")
    assert document(f"{where}.json{question}{query}")


def examined(client: TestClient, path: str, headers: dict[str, str] | None = None) -> str:
    """A page, once the machine has been examined."""
    until = time.monotonic() + 120
    while "torch cannot use the GPU." not in (text := client.get(path, headers=headers).text):
        assert time.monotonic() < until
    return text


def test_home_shows_machine_health_and_last_results() -> None:
    whole_run()
    client = web_client()
    text = examined(client, "/home")
    assert "A CPU" in text and "4.0 GiB of 16.0 GiB used" in text and "1 warning" in text
    assert "digits-0001" in text and "90.0 %" in text
    counts = json.loads(client.get("/home.json").text)["counts"]
    assert counts == {"error": 0, "warning": 1, "note": 0}


def test_home_when_the_machine_cannot_be_examined() -> None:
    def broken() -> Examined:
        raise ZeroDivisionError

    watch = machine_health(broken)
    while watch.latest().at is None:
        pass
    problem = watch.latest().problem
    assert problem is not None and problem.rule == "internal-error"


@pytest.mark.parametrize(
    ("language", "note"),
    [
        ("en", ""), ("es", "Los errores y los hallazgos están en inglés."),
        ("zh", "错误和诊断结果为英文。"),
    ],
)  # fmt: skip
def test_findings_are_marked_as_english(language: str, note: str) -> None:
    other = msgspec.structs.replace(FINDING, problem="Another problem.", severity="error")
    client = web_client(findings=(FINDING, other))
    text = examined(client, "/doctor", {"accept-language": language})
    for said in ("torch cannot use the GPU.", "Another problem.", "it is the CPU build",
                 "flatout setup"):  # fmt: skip
        assert f'<span lang="en">{said}</span>' in text
    assert "in English" not in text
    # Once on a page, and before the first of them.
    if note:
        assert text.count(note) == 1 and text.index(note) < text.index('class="finding')


def test_runs_are_filtered_and_sorted() -> None:
    for number, accuracy in enumerate((0.7, 0.9, 0.8), 1):
        whole_run(f"digits-{number:04d}", accuracy)

    def shown(query: str) -> list[str]:
        return [run["id"][-1] for run in document(f"/runs.json{query}")["runs"]]

    assert shown("") == ["3", "2", "1"]
    assert shown("?sort=-accuracy") == ["2", "3", "1"]
    assert shown("?where=accuracy>0.75&sort=accuracy") == ["3", "2"]
    assert shown("?where=accuracy>0.75; run!=digits-0003") == ["2"]
    assert 'aria-sort="descending"' in page("/runs?sort=-duration")


def test_runs_when_a_key_is_unknown() -> None:
    whole_run()
    text = page("/runs?where=acuracy>0.5")
    assert "no run has `acuracy`" in text and "accuracy" in text and "digits-0001" in text


def test_runs_are_shown_in_pages() -> None:
    for number in range(1, 103):
        new_run(f"digits-{number:04d}")
    assert len(document("/runs.json")["runs"]) == 100
    second = document("/runs.json?page=2")
    assert len(second["runs"]) == 2 and second["num_pages"] == 2
    assert 'rel="prev"' in page("/runs?page=2") and 'rel="next"' in page("/runs")
    assert document("/runs.json?page=99999999999999999999999")["page_number"] == 1


def test_run_shows_result_recipe_and_curves() -> None:
    whole_run()
    text = page("/runs/digits-0001")
    assert "90.0 %" in text and "finished" in text and "flatout show digits-0001" in text
    assert text.count("<svg viewBox") >= 4 and "learning rate" in text
    assert text.index("accuracy") < text.index("Curves") < text.index("Events")
    known = document("/runs/digits-0001.json")
    assert known["metrics"] == {"loss": 0.25, "accuracy": 0.9}
    panels = [chart["panel"] for chart in known["charts"]]
    assert panels == ["loss", "accuracy", "learning_rate", "samples_per_s", "memory_bytes"]


def test_run_shows_its_failure_first() -> None:
    finding = Finding(rule="out-of-memory", severity="error", problem="The GPU is full.")
    failed = Failed(at=1.0, step=5, finding=finding)
    new_run("digits-0001", [started(), failed], [progress(5)])
    text = page("/runs/digits-0001")
    assert text.index("The GPU is full.") < text.index("Curves")
    assert "flatout train --resume digits-0001" in text


def test_run_shows_the_search_for_its_recipe() -> None:
    gain = Interval(middle=2.0, low=1.9, high=2.1)

    def candidate(name: str) -> Candidate:
        return Candidate(name=name, axis="precision", changes={}, why="")

    def trial(name: str) -> Trial:
        return Trial(stage="screen", candidate=candidate(name), incumbent=None, changes={})

    decision = Decision(
        changes={}, speedup=gain, why="bf16 was faster", search_s=12.0,
        rungs=(Rung(name="plain loop", changes={}, samples_per_s=100.0),
               Rung(name="bf16 autocast", changes={}, samples_per_s=200.0, gain=gain)),
        lost=(Result(trial=trial("fp16 + scaler"), cost_s=1.0, speedup=gain),),
        refused=(Result(trial=trial("float8"), cost_s=1.0),),
        skipped=(Skip(name="CUDA graph", axis="capture", reason="no GPU"),),
    )  # fmt: skip
    new_run("digits-0001", [started(), Tuned(at=1.0, step=0, decision=decision), finished()])
    text = page("/runs/digits-0001")
    for shown in ("bf16 autocast", "x2.00 [1.90, 2.10]", "fp16 + scaler", "float8", "no GPU"):
        assert shown in text


def test_run_whose_header_is_damaged() -> None:
    folder = whole_run()
    folder.header.write_text("{")
    folder.log.write_text("last words")
    text = page("/runs/digits-0001")
    assert "This run cannot be read." in text and "run.json" in text
    assert "last words" in text and "<svg viewBox" in text
    assert document("/runs/digits-0001.json")["is_damaged"] is True
    assert "unreadable" in page("/runs") and "unreadable" in page("/home")
    assert "cannot be read" in page("/compare?run=digits-0001&run=digits-0001")


def test_run_whose_events_are_damaged() -> None:
    folder = whole_run()
    folder.events.write_text('{"kind": "started"}\n')
    text = page("/runs/digits-0001")
    assert "events.jsonl has an invalid line" in text and "<svg viewBox" in text


@pytest.mark.skipif(IS_ROOT or sys.platform == "win32", reason="root reads what it may not")
def test_run_whose_log_may_not_be_read() -> None:
    folder = whole_run()
    folder.log.write_text("x")
    folder.log.chmod(0)
    text = page("/runs/digits-0001")
    assert "no permission" in text and "90.0 %" in text


def test_run_whose_log_is_a_folder() -> None:
    folder = whole_run()
    folder.log.mkdir()
    text = page("/runs/digits-0001")
    assert "is not a regular file" in text and "90.0 %" in text


def test_runs_folder_that_is_gone(state: Path) -> None:
    client = web_client()
    whole_run()
    assert "digits-0001" in client.get("/runs").text
    shutil.rmtree(state / "runs")
    assert client.get("/runs").status_code == 200 == client.get("/home").status_code
    assert client.get("/runs/digits-0001").status_code == 404


def test_runs_folder_that_is_a_file(state: Path) -> None:
    (state / "runs").write_text("")
    assert web_client().get("/home").status_code == 200


def test_metrics_that_are_not_finite_are_counted() -> None:
    folder = whole_run()
    with open(folder.metrics, "a", encoding="utf-8") as file:
        for step, loss in ((110, "null"), (120, "null"), (130, "1e400"), (140, "NaN")):
            file.write(f'{{"kind":"progress","step":{step},"at":1,"epoch":0,"loss":{loss}}}\n')
        file.write("broken\n")
    text = page("/runs/digits-0001")
    assert "values are not finite, first at step 110" in text and "damaged and left out" in text


def test_run_with_an_id_that_ends_like_a_document() -> None:
    whole_run("a")
    whole_run("a.json")
    assert "<h1>a.json" in page("/runs/a.json")
    assert document("/runs/a.json.json")["id"] == "a.json"


def test_page_that_does_not_exist() -> None:
    for path in ("/nothing", "/runs/x/y", "/runs/digits-0009", "/runs/digits-0009/live"):
        answer = web_client().get(path)
        assert answer.status_code == 404 and "<h1>" in answer.text
    answer = web_client().get("/runs/digits-0009.json")
    assert answer.status_code == 404 and answer.json()["error"]["rule"] == "unknown-run"


def test_compare_shows_differences_and_curves() -> None:
    whole_run("a-0001", 0.7)
    whole_run("b-0001", 0.9)
    new_run("c-0001", [started()], [progress(10)])
    text = page("/compare?run=a-0001&run=b-0001&run=c-0001&run=gone")
    assert "70.0 %" in text and "90.0 %" in text and "there is no run `gone`" in text
    known = document("/compare.json?run=a-0001&run=b-0001&run=c-0001")
    loss = known["charts"][0]["lines"]
    assert {line["run"] for line in loss} == {"a-0001", "b-0001", "c-0001"}
    assert [section["name"] for section in known["sections"]][0] == "result"


def test_chart_of_a_part() -> None:
    whole_run()
    (chart,) = document("/chart.json?run=digits-0001&panel=loss&from=20&to=40")["charts"]
    assert chart["lines"][0]["steps"] == [20, 30, 40]


def test_language_is_kept() -> None:
    client: TestClient = web_client()
    client.cookies.set("flatout_language", "zh")
    assert "训练记录" in client.get("/runs", headers={"accept-language": "es"}).text


def test_run_that_is_read_again_only_if_it_has_changed(state: Path) -> None:
    folder = whole_run()
    cache = RunCache()
    first = cache.row(folder.path)
    assert cache.row(folder.path) is first
    lines = atomic_files.Lines(folder.metrics)
    lines.append(validated(110, 0.95, is_best=True))
    lines.close()
    row = cache.row(folder.path)
    assert row is not None and row.metrics["accuracy"] == 0.95


def test_run_that_is_resumed_from_an_earlier_checkpoint() -> None:
    folder = whole_run()
    cache = RunCache()
    assert cache.row(folder.path)
    folder.metrics.write_bytes(b"")
    resumed = msgspec.structs.replace(started(), at=CREATED_AT + 500, resumed=True)
    for path, new in ((folder.events, [resumed, finished(200)]),
                      (folder.metrics, [progress(step) for step in range(200)])):  # fmt: skip
        lines = atomic_files.Lines(path)
        for line in new:
            lines.append(line)
        lines.close()
    row = cache.row(folder.path)
    assert row is not None and row.metrics == {}


def test_run_whose_worker_was_killed() -> None:
    folder = new_run("digits-0001", [started()], [progress(10)])
    lock = folder.lock()
    assert lock.acquire()
    cache = RunCache()
    row = cache.row(folder.path)
    assert row is not None and row.run.status == "running"
    lock.release()
    row = cache.row(folder.path)
    assert row is not None and row.run.status == "interrupted"


def test_running_run_has_a_stream_and_is_on_the_first_page() -> None:
    folder = new_run("digits-0001", [started()], [progress(10)])
    lock = folder.lock()
    assert lock.acquire()
    try:
        size = f"{folder.events.stat().st_size}-{folder.metrics.stat().st_size}"
        assert f'data-stream="/runs/digits-0001/live?at={size}"' in page("/runs/digits-0001")
        assert [run["id"] for run in document("/home.json")["runs"]["value"]["running"]]
    finally:
        lock.release()


def test_stream_says_that_there_are_new_lines_and_ends() -> None:
    folder = whole_run()
    end = f"{folder.events.stat().st_size}-{folder.metrics.stat().st_size}"
    ended = "event: ended\ndata: {}\n\n"
    for query in ("", "?at=0-0", "?at=x"):
        text = page(f"/runs/digits-0001/live{query}")
        assert text == f"id: {end}\nevent: lines\ndata: {{}}\n\n{ended}"
    assert page(f"/runs/digits-0001/live?at={end}") == ended
    # A browser that connects again has seen them.
    assert page("/runs/digits-0001/live?at=0-0", headers={"last-event-id": end}) == ended


def test_cache_forgets_runs_that_were_removed() -> None:
    folders = [whole_run(f"digits-{number:04d}") for number in (1, 2, 3)]
    cache = RunCache()
    assert len(cache.rows(cache.paths()).rows) == 3
    shutil.rmtree(folders[0].path)
    assert not cache.has("digits-0001") and cache.has("digits-0002")
    assert len(cache._entries) == 2


def test_known_run_is_found_without_listing_all() -> None:
    whole_run()
    num_listed = 0

    def listed() -> list[Path]:
        nonlocal num_listed
        num_listed += 1
        return run_paths()

    cache = RunCache(listed)
    for _ in range(10):
        assert cache.find("digits-0001").path.is_dir()
    assert num_listed == 1
    whole_run("digits-0002")
    assert cache.has("digits-0002") and not cache.has("digits-0003")


@pytest.mark.skipif(sys.platform != "linux", reason="folders have names of any bytes in Linux only")
def test_folder_whose_name_is_no_text(state: Path) -> None:
    whole_run()
    os.mkdir(os.fsencode(state / "runs") + b"/\xff")
    for path in ("/home", "/runs", "/runs.json"):
        assert "digits-0001" in page(path)


def test_event_at_an_impossible_time() -> None:
    late = msgspec.structs.replace(started(), at=1e300)
    new_run("digits-0001", [late], [progress(10)])
    assert '<td class="number">-</td>' in page("/runs/digits-0001")


def test_comparison_of_very_many_runs_has_curves_of_the_first() -> None:
    names = [f"digits-{number:04d}" for number in range(1, 103)]
    for name in names:
        new_run(name, [started()], [progress(10)])
    query = "&".join(f"run={name}" for name in names)
    known = document(f"/compare.json?{query}")
    assert known["runs"] == names and known["charted"] == names[:100]
    assert {line["run"] for line in known["charts"][0]["lines"]} == set(names[:100])
    assert "first 100 runs" in page(f"/compare?{query}")


def chart(values: list[float], *, is_log: bool = False) -> ChartData:
    steps = list(range(len(values)))
    line = ChartLine(run="a", line="training", color=0, dash=0, steps=steps, values=values)
    return ChartData(panel="loss", lines=(line,), is_log=is_log)


@pytest.mark.parametrize("values", [[0.0], [1.0, 1.0], [-5.0, 5.0], [1e-300, 1e300], [1e18, 2e18]])
def test_picture_stays_inside(values: list[float]) -> None:
    drawn = picture(chart(values))
    assert drawn is not None
    for x, y in drawn.paths[0].dots:
        assert drawn.left <= x <= drawn.right and drawn.top <= y <= drawn.bottom
    for tick in drawn.y_ticks:
        assert drawn.top - 1 <= tick.at <= drawn.bottom + 1
    assert picture(chart([])) is None


def test_picture_with_a_logarithmic_axis() -> None:
    drawn = picture(chart([1000.0, 1.0, 0.1], is_log=True))
    assert drawn is not None
    assert [tick.label for tick in drawn.y_ticks] == ["0.1", "1", "10", "100", "1000"]


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(0, 10, [0, 2, 4, 6, 8, 10]), (0.1, 0.3, [0.1, 0.15, 0.2, 0.25, 0.3]), (5, 5, [5])],
)
def test_linear_ticks_are_round(low: float, high: float, ticks: list[float]) -> None:
    assert linear_ticks(low, high) == ticks


def test_log_ticks_are_powers() -> None:
    assert log_ticks(-1.5, 2.2) == [0.1, 1.0, 10.0, 100.0]
    assert len(log_ticks(-300, 300)) <= 12


def test_view_has_a_default() -> None:
    assert CurveView().columns == 600
