"""Live in `flatout web`: the history of the machine, however long, and its alarms."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from support.web_runs import FINDING, web_client

from flatout.errors import FlatoutError
from flatout.schema.alarm import Alarm
from flatout.schema.machine_sample import GpuSample, HostSample, MachineSample
from flatout.system.store import daily_files
from flatout.system.store.daily_files import DailyFiles, monitor_folder, read_alarms
from flatout.system.store.sample_index import index_samples, machine_curves
from flatout.web import live_page
from flatout.web.charts import ChartData, ChartLine, picture, time_ticks

DAY_S = 86_400
# 2027-01-15, midnight UTC.
MIDNIGHT = 1_799_971_200


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path))
    return tmp_path


def sample(at: float, power_w: float = 100.0) -> MachineSample:
    host = HostSample(utilization=0.25, memory_bytes=16 << 30, available_bytes=12 << 30)
    gpus = tuple(
        GpuSample(index=index, name="A GPU", utilization=0.5, used_bytes=1 << 30, power_w=power_w)
        for index in range(2)
    )
    return MachineSample(at=at, host=host, gpus=gpus, source="nvml")


def write(times: Iterable[float], power_w: float = 100.0) -> None:
    with DailyFiles(monitor_folder(), days=99, keep_bytes=1 << 30) as files:
        for at in times:
            files.append(sample(at, power_w))


def write_quickly(day: int, num: int, peak_at: int = -1) -> None:
    """A day of samples, evenly; the GPU's power has a single peak."""
    path = monitor_folder() / f"{datetime.fromtimestamp(day, UTC).date()}.jsonl"
    path.parent.mkdir(exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        for number in range(num):
            power = 999 if number == peak_at else 100 + number % 7
            at = day + number * DAY_S / num
            gpus = [{"index": 0, "power_w": power}]
            line = {"at": at, "host": {"utilization": 0.5}, "gpus": gpus}
            file.write(f"{json.dumps(line)}\n")


def power(first_s: int, last_s: int, columns: int = 100) -> Any:
    """The curve of a GPU's power, when all samples are in the index."""
    index_samples()
    curves, _ = machine_curves(first_s, last_s, columns=columns)
    assert curves.share_read == 1
    return next(one for one in curves.curves if one.panel == "gpu_power_w")


def test_day_that_has_just_ended_is_still_shown() -> None:
    write(MIDNIGHT - 20 * number for number in range(100, 0, -1))
    assert len(power(MIDNIGHT - 3600, MIDNIGHT).steps) == 100
    # With the first sample of the next day, nothing more comes to the file of the last.
    write([MIDNIGHT + 5])
    curves, _ = machine_curves(MIDNIGHT - 1000, MIDNIGHT - 1, columns=100)
    drawn = next(one for one in curves.curves if one.panel == "gpu_power_w")
    assert len(drawn.steps) == 50
    assert curves.share_read == 1


def page(path: str = "/live", **more: Any) -> str:
    answer = web_client().get(path, **more)
    assert answer.status_code == 200, answer.text[-500:]
    return answer.text


def document(path: str) -> Any:
    return json.loads(web_client().get(path).text)


def test_page_without_any_sample() -> None:
    text = page()
    assert "flatout monitor" in text and "There are no samples yet." in text and "No alarms" in text


def test_page_shows_the_newest_sample_and_the_history() -> None:
    now = time.time()
    write([*(now - 60 * number for number in range(100, 1, -1))])
    write([now - 1], power_w=321.0)
    # Without this, the part of the hour before midnight would be read in the background.
    index_samples()
    text = page("/live?hours=1")
    assert "25 %" in text and "4.0 GiB of 16.0 GiB used" in text and "321" in text
    assert text.count("<figure") == 4 and text.count("<path class") > 4
    charts = {chart["panel"]: chart for chart in document("/live.json?hours=1")["charts"]}
    assert [line["line"] for line in charts["utilization"]["lines"]] == ["cpu", "gpu 0", "gpu 1"]
    assert charts["gpu_power_w"]["lines"][0]["values"][-1] == 321.0
    assert len(charts["gpu_power_w"]["lines"][0]["steps"]) in range(55, 65)
    assert charts["utilization"]["is_time"]


def test_chart_of_a_part() -> None:
    now = int(time.time())
    write(range(now - 600, now))
    index_samples()
    path = f"/live/charts.json?hours=1&panel=gpu_power_w&from={now - 100}&to={now - 50}"
    (chart,) = document(path)["charts"]
    assert chart["lines"][0]["steps"] == list(range(now - 100, now - 49))


@pytest.mark.parametrize("query", ["hours=0", "hours=x", "hours=99999999", "from=9&to=1", "to=1"])
def test_any_query_is_answered(query: str) -> None:
    write([time.time()])
    page(f"/live?{query}")
    assert web_client().get(f"/live/charts.json?{query}").status_code == 200


def test_curve_is_interrupted_where_nothing_was_sampled() -> None:
    now = int(time.time())
    write([*range(now - 3000, now - 2800, 2), *range(now - 200, now, 2)])
    index_samples()
    chart = next(one for one in document("/live.json?hours=1")["charts"]
                 if one["panel"] == "gpu_power_w")  # fmt: skip
    assert chart["lines"][0]["values"].count(None) == 1


def test_days_are_joined_and_a_peak_is_kept() -> None:
    for number in range(3):
        write_quickly(MIDNIGHT + number * DAY_S, 5000, peak_at=1234 if number == 1 else -1)
    curve = power(MIDNIGHT, MIDNIGHT + 3 * DAY_S)
    assert curve.steps == sorted(curve.steps) and len(curve.steps) < 300
    assert curve.steps[0] < MIDNIGHT + 3600 and curve.steps[-1] > MIDNIGHT + 3 * DAY_S - 3600
    peak_s = int(MIDNIGHT + DAY_S + 1234 * DAY_S / 5000)
    assert (peak_s, 999) in zip(curve.steps, curve.values, strict=True)


def test_day_that_has_ended_is_read_once(state: Path) -> None:
    write_quickly(MIDNIGHT, 3000)
    write_quickly(MIDNIGHT + DAY_S, 3000)
    whole = power(MIDNIGHT, MIDNIGHT + 2 * DAY_S, columns=40)
    ended = monitor_folder() / "2027-01-15.jsonl"
    ended.write_bytes(b" " * (ended.stat().st_size - 64) + ended.read_bytes()[-64:])
    assert power(MIDNIGHT, MIDNIGHT + 2 * DAY_S, columns=40) == whole


def test_new_samples_of_today_are_added() -> None:
    now = int(time.time())
    write(range(now - 100, now - 50))
    assert power(now - 100, now).steps[-1] == now - 51
    write(range(now - 50, now))
    assert power(now - 100, now, columns=600).steps == list(range(now - 100, now))


def test_long_history_is_shown_before_it_is_indexed() -> None:
    today = int(time.time()) // DAY_S * DAY_S
    for number in range(1, 4):
        write_quickly(today - number * DAY_S, 5000)
    client = web_client()
    assert "The samples are being read:" in client.get("/live?hours=96").text
    until = time.monotonic() + 60
    while (known := client.get("/live.json?hours=96").json())["share_read"] < 1:
        assert time.monotonic() < until
    assert [chart["panel"] for chart in known["charts"]] == ["utilization", "gpu_power_w"]
    assert len(known["charts"][1]["lines"][0]["steps"]) > 100
    assert "data-unread" not in client.get("/live?hours=96").text


def test_reading_does_not_wait_for_who_adds_to_the_index(state: Path) -> None:
    write_quickly(MIDNIGHT, 3000)
    write_quickly(MIDNIGHT + DAY_S, 3000)
    whole = power(MIDNIGHT, MIDNIGHT + 2 * DAY_S, columns=40)
    began_s = time.monotonic()
    with contextlib.ExitStack() as stack:
        for path in (state / "web" / "samples").glob("*.sqlite"):
            db = stack.enter_context(contextlib.closing(sqlite3.connect(path)))
            db.execute("BEGIN IMMEDIATE")
            db.execute("DELETE FROM bucket")
        curves, _ = machine_curves(MIDNIGHT, MIDNIGHT + 2 * DAY_S, columns=40)
    # Who waits for a lock does so for ten seconds.
    assert whole in curves.curves and time.monotonic() - began_s < 10


def test_index_of_another_file_is_not_used() -> None:
    write_quickly(MIDNIGHT, 3000, peak_at=10)
    assert 999 in power(MIDNIGHT, MIDNIGHT + DAY_S).values
    write_quickly(MIDNIGHT, 2500)
    curves, _ = machine_curves(MIDNIGHT, MIDNIGHT + DAY_S, columns=100)
    assert curves.share_read < 1
    assert all(999 not in curve.values for curve in curves.curves)
    assert 999 not in power(MIDNIGHT, MIDNIGHT + DAY_S).values


def test_last_sample_that_was_cut_off() -> None:
    write_quickly(MIDNIGHT, 3000)
    write_quickly(MIDNIGHT + DAY_S, 10)
    for day in ("2027-01-15", "2027-01-16"):
        with open(monitor_folder() / f"{day}.jsonl", "a", encoding="utf-8") as file:
            file.write('{"at": 1')
    assert len(power(MIDNIGHT, MIDNIGHT + 2 * DAY_S).steps) > 100


def test_index_of_a_removed_day_is_deleted(state: Path) -> None:
    write_quickly(MIDNIGHT, 10)
    power(MIDNIGHT, MIDNIGHT + DAY_S)
    index = state / "web" / "samples" / "2027-01-15.sqlite"
    assert index.exists()
    (monitor_folder() / "2027-01-15.jsonl").unlink()
    index_samples()
    assert not index.exists()


def test_alarms_are_kept_and_shown_newest_first() -> None:
    raised = Alarm(at=MIDNIGHT, state="raised", subject="GPU 0", finding=FINDING)
    cleared = Alarm(at=MIDNIGHT + 90, state="cleared", subject="GPU 0", finding=FINDING)
    with DailyFiles(monitor_folder(), days=9, keep_bytes=1 << 20) as files:
        files.append_alarm(raised)
        files.append_alarm(cleared)
    assert read_alarms(monitor_folder()) == [raised, cleared]
    text = page()
    assert text.index("cleared") < text.index("raised") and FINDING.problem in text
    assert [one["state"] for one in document("/live.json")["alarms"]["value"]] == [
        "cleared", "raised",
    ]  # fmt: skip


def test_alarms_take_limited_space(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daily_files, "_MOST_ALARM_BYTES", 5000)
    with DailyFiles(monitor_folder(), days=9, keep_bytes=1 << 20) as files:
        for number in range(100):
            alarm = Alarm(at=number, state="raised", subject="GPU 0", finding=FINDING)
            files.append_alarm(alarm)
    kept = read_alarms(monitor_folder())
    assert kept[-1].at == 99 and len(kept) < 40


def test_damaged_files_are_named_and_the_rest_is_shown() -> None:
    write([time.time()])
    (monitor_folder() / "alarms.jsonl").write_text("{no json\n")
    text = page()
    assert "damaged-file" in text and "A GPU" in text and "<figure" in text
    monitor_folder().joinpath(f"{datetime.now(UTC).date()}.jsonl").write_text("\0\0\n{}\n")
    page()


def test_day_that_cannot_be_read_is_named_and_the_others_are_shown() -> None:
    write_quickly(MIDNIGHT, 3000)
    write_quickly(MIDNIGHT + DAY_S, 3000)
    power(MIDNIGHT, MIDNIGHT + 2 * DAY_S)
    path = monitor_folder() / "2027-01-16.jsonl"
    path.unlink()
    path.mkdir()
    curves, errors = machine_curves(MIDNIGHT, MIDNIGHT + 2 * DAY_S, columns=100)
    assert len(errors) == 1 and "2027-01-16.jsonl" in errors[0].problem
    assert curves.curves and curves.share_read == 1
    with pytest.raises(FlatoutError):
        index_samples()


def test_event_comes_with_news(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_page, "_POLL_S", 0.01)

    async def watched() -> list[str]:
        texts: list[str] = []
        async for text in live_page._events(0.0, lambda: len(texts) > 2):
            texts.append(text)
            if len(texts) == 1:
                write([time.time()])
        return texts

    texts = asyncio.run(watched())
    assert texts[0] == ": waiting\n\n"
    assert "event: lines\ndata: {}\n\n" in texts


def test_ticks_are_round_local_times() -> None:
    hour = time_ticks(MIDNIGHT, MIDNIGHT + 3600)
    assert 3 <= len(hour) <= 6 and all(label.endswith(("0", "5")) for _, label in hour)
    month = time_ticks(MIDNIGHT, MIDNIGHT + 30 * DAY_S)
    assert 3 <= len(month) <= 6 and month[0][1].startswith("01-")
    assert all(MIDNIGHT <= at <= MIDNIGHT + 30 * DAY_S for at, _ in month)


def test_picture_of_an_interrupted_curve() -> None:
    steps = [MIDNIGHT + 60 * number for number in range(4)]
    line = ChartLine(run="", line="cpu", color=0, dash=0, steps=steps, values=[0.1, None, 0.2, 0.3])
    drawn = picture(ChartData(panel="utilization", lines=(line,), is_log=False, is_time=True))
    assert drawn is not None and drawn.paths[0].path.count("M") == 2
    assert len(drawn.paths[0].dots) == 3 and "%" in drawn.y_ticks[0].label
