"""Runs that take long to read: a page shows what is known of them, and does not wait."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from support.busy_machine import wait_until
from support.web_runs import (
    big_metrics,
    new_run,
    progress,
    started,
    validated,
    web_app,
    whole_run,
)

from flatout.system import atomic_files
from flatout.system.store.run_folder import RunFolder
from flatout.web.run_cache import SERVER_LIMITS, ReadLimits, RunCache

# Nothing of a list but the first two runs, and the first megabyte of metrics.
IMPATIENT = ReadLimits(part_bytes=1, list_s=-1.0, num_always=2)
FIRST_PAGE = """
import sys, threading, urllib.request
from flatout.schema.web_request import WebRequest
from flatout.web import api

with api.WebServer(WebRequest(port=0, is_read_only=True)) as server:
    before = set(sys.modules)
    threading.Thread(target=server.run, daemon=True).start()
    urllib.request.urlopen(server.ready.url + "home").read()
    new = sys.modules.keys() - before
    slow = ("anyio", "flatout.web", "httptools", "jinja2", "starlette", "uvicorn.protocols")
    print(*[name for name in new if name.startswith(slow)])
"""


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path))
    return tmp_path


def long_run(num_lines: int = 20_000) -> RunFolder:
    """A run whose last validation is its best one, at the end of megabytes."""
    folder = new_run("long-0001", [started()])
    big_metrics(folder, num_lines)
    lines = atomic_files.Lines(folder.metrics)
    lines.append(validated(num_lines, 0.75, is_best=True))
    lines.close()
    return folder


def client_of(runs: RunCache) -> TestClient:
    return TestClient(web_app(runs=runs), base_url="http://127.0.0.1:8420")


def test_page_reads_the_beginning_of_long_metrics_and_the_rest_follows() -> None:
    path = long_run().path
    cache = RunCache(limits=IMPATIENT)
    row = cache.row(path)
    assert row is not None and 0.1 < row.share_read < 0.5 and row.metrics == {}

    def is_read() -> bool:
        row = cache.row(path)
        return row is not None and row.share_read == 1 and row.metrics["accuracy"] == 0.75

    wait_until(is_read)


def test_long_run_that_is_damaged_says_so_once_that_line_is_read() -> None:
    folder = long_run()
    whole = folder.metrics.read_bytes()
    line = whole.splitlines(keepends=True)[0]
    folder.metrics.write_bytes(whole + b'{"kind":"validated" oops\n' + line)
    cache = RunCache(limits=IMPATIENT)
    row = cache.row(folder.path)
    assert row is not None and row.run.status == "interrupted"

    def is_damaged() -> bool:
        row = cache.row(folder.path)
        return row is not None and row.run.status == "unreadable"

    wait_until(is_damaged)


def test_long_run_that_grows_is_read_to_its_end() -> None:
    folder = long_run()
    cache = RunCache(limits=IMPATIENT)
    wait_until(lambda: getattr(cache.row(folder.path), "share_read", 0) == 1)
    lines = atomic_files.Lines(folder.metrics)
    for step in range(20_001, 30_001):
        lines.append(progress(step))
    lines.append(validated(30_001, 0.95, is_best=True))
    lines.close()
    row = cache.row(folder.path)
    assert row is not None and row.metrics["accuracy"] == 0.75 and row.share_read < 1
    wait_until(lambda: getattr(cache.row(folder.path), "metrics", {})["accuracy"] == 0.95)


def test_list_has_the_runs_that_are_known_and_the_others_follow() -> None:
    for number in range(1, 6):
        whole_run(f"digits-{number:04d}")
    cache = RunCache(limits=IMPATIENT)
    paths = cache.paths()
    known = cache.rows(paths)
    assert [row.run.id for row in known.rows] == ["digits-0001", "digits-0002"]
    assert known.num_unread == 3
    wait_until(lambda: cache.rows(paths).num_unread == 0)
    assert len(cache.rows(paths).rows) == 5


@pytest.mark.parametrize("path", ["/runs", "/runs?sort=-accuracy", "/home"])
def test_page_says_that_runs_are_still_being_read(path: str) -> None:
    for number in range(1, 6):
        whole_run(f"digits-{number:04d}")
    text = client_of(RunCache(limits=IMPATIENT)).get(path).text
    assert "3 runs are still being read." in text and "data-unread" in text
    client = client_of(RunCache(limits=IMPATIENT))
    wait_until(lambda: "being read" not in client.get(path).text)
    assert "digits-0005" in client.get(path).text


@pytest.mark.parametrize("others", [["b"], []])
def test_filter_says_that_a_run_may_match_once_more_of_it_is_read(others: list[str]) -> None:
    long_run()
    for name in others:
        whole_run(name, 0.9)
    client, path = client_of(RunCache(limits=IMPATIENT)), "/runs?where=accuracy%3C0.8"
    text = client.get(path).text
    assert "1 run is still being read." in text
    assert ("no run has `accuracy`" in text) == (not others)
    wait_until(lambda: "being read" not in client.get(path).text)
    text = client.get(path).text
    assert "no run has" not in text and "long-0001" in text


@pytest.mark.parametrize("path", ["/runs", "/runs/long-0001", "/compare?run=long-0001&run=b"])
def test_page_says_how_much_of_a_run_has_been_read(path: str) -> None:
    long_run()
    whole_run("b")
    client = client_of(RunCache(limits=IMPATIENT))
    said = " % of its metrics read</span>" if path == "/runs" else "The validations are being read:"
    assert said in client.get(path).text
    wait_until(lambda: said not in client.get(path).text)
    assert "75.0 %" in client.get(path).text


def test_limits_of_a_server_show_ordinary_runs_at_once() -> None:
    # As many as are read whether there is time or not.
    names = [f"digits-{number:04d}" for number in range(1, SERVER_LIMITS.num_always + 1)]
    for name in names:
        whole_run(name)
    cache = RunCache(limits=SERVER_LIMITS)
    known = cache.rows(cache.paths())
    assert [row.run.id for row in known.rows] == names and known.num_unread == 0
    assert all(row.share_read == 1 for row in known.rows)


def test_first_page_does_not_wait_for_imports() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FIRST_PAGE], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr
