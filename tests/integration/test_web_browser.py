"""`flatout web` in Debian's Chromium: what people do, without and with JavaScript.

With FLATOUT_SCREENSHOTS=DIR, pictures of the pages are kept in that folder.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from support.web_runs import big_metrics, finished, new_run, progress, started, validated, whole_run

from flatout.system import atomic_files
from flatout.system.store.run_folder import RunFolder

SRC = Path(__file__).resolve().parents[2] / "src"
CHROMIUM = Path("/usr/bin/chromium")
ATTACK = "<script>document.title='RUN'</script><img src=x onerror=\"document.title='RUN'\">"
PAGES = ("home", "runs", "runs/digits-0001", "runs/failed-0001",
         "compare?run=digits-0001&run=digits-0002", "train?experiment=digits&plan=1", "cluster",
         "serve")  # fmt: skip
LACKING = [
    what
    for what, is_there in (
        ("/usr/bin/chromium (apt-get install chromium)", CHROMIUM.exists()),
        ("playwright (pip install playwright)", find_spec("playwright") is not None),
    )
    if not is_there
]
pytestmark = pytest.mark.skipif(bool(LACKING), reason=f"needs {' and '.join(LACKING)}")


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("state")
    before = os.environ.get("FLATOUT_STATE")
    os.environ["FLATOUT_STATE"] = str(folder)
    whole_run("digits-0001", 0.91)
    whole_run("digits-0002", 0.87)
    new_run("failed-0001", [started()], [progress(3, None), progress(4, None)],
            parameters={"note": ATTACK})  # fmt: skip
    (folder / "runs" / "failed-0001" / "worker.log").write_text(f"{ATTACK}\n" * 300)
    big_metrics(new_run("long-0001", [started()]), 200_000)
    yield folder
    if before is None:
        del os.environ["FLATOUT_STATE"]
    else:
        os.environ["FLATOUT_STATE"] = before


@pytest.fixture(scope="module")
def address(state: Path) -> Iterator[str]:
    """The address of a server of the command line."""
    argv = [sys.executable, "-P", "-m", "flatout", "web", "--port", "0", "--json"]
    environment = {**os.environ, "FLATOUT_STATE": str(state), "PYTHONPATH": str(SRC)}
    with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        text = ""
        while not text.rstrip().endswith("}"):
            line = server.stdout.readline()
            assert line, "the server has ended"
            text += line
        yield json.loads(text)["url"]
        server.terminate()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield opened
        opened.close()


class Visit:
    """A page that was opened, and everything that went wrong in it."""

    def __init__(self, browser: Any, address: str, path: str, **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.problems: list[str] = []
        self.page.on("console", self._note)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("request", self._check_host)
        self._address = address
        self.page.goto(f"{address}{path}")

    def __enter__(self) -> Any:
        return self.page

    def __exit__(self, kind: object, *rest: object) -> None:
        self.context.close()
        if kind is None:
            assert self.problems == []

    def _note(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(message.text)

    def _check_host(self, request: Any) -> None:
        if not request.url.startswith(self._address):
            self.problems.append(f"asked for {request.url}")


def keep_picture(page: Any, name: str) -> None:
    folder = os.environ.get("FLATOUT_SCREENSHOTS")
    if folder:
        page.screenshot(path=str(Path(folder) / f"{name}.png"), full_page=True)


def test_from_home_to_a_run_and_a_comparison(browser: Any, address: str) -> None:
    with Visit(browser, address, "") as page:
        page.get_by_role("heading", name="Machine", exact=True).wait_for()
        page.locator("dt", has_text="CPU").wait_for(timeout=60_000)
        keep_picture(page, "home")
        page.get_by_role("link", name="digits-0001").first.click()
        page.locator(".chart canvas").first.wait_for()
        assert page.locator(".results dd").all_inner_texts() == ["0.25", "91.0 %"]
        keep_picture(page, "run")
        page.get_by_role("link", name="Runs", exact=True).click()
        page.get_by_label("Compare digits-0001").check()
        page.get_by_label("Compare digits-0002").check()
        keep_picture(page, "runs")
        page.get_by_role("button", name="Compare the chosen runs").click()
        page.locator(".chart canvas").first.wait_for()
        assert "digits-0001" in page.locator(".legend").first.inner_text()
        keep_picture(page, "compare")


def test_runs_are_filtered(browser: Any, address: str) -> None:
    with Visit(browser, address, "runs") as page:
        page.get_by_label("Only runs with").fill("accuracy>0.9")
        page.keyboard.press("Enter")
        page.wait_for_url("**where=**")
        assert page.locator("tbody tr").count() == 1
        page.get_by_label("Only runs with").fill("acuracy>0.9")
        page.keyboard.press("Enter")
        page.get_by_text("no run has `acuracy`").wait_for()


def test_chart_of_a_long_run_zooms_to_single_lines(browser: Any, address: str) -> None:
    share = 0.0
    while share < 1:
        with urllib.request.urlopen(f"{address}chart.json?run=long-0001&panel=loss") as answer:
            share = json.load(answer)["charts"][0]["share_read"]
    with Visit(browser, address, "runs/long-0001") as page:
        chart = page.locator(".chart").first
        chart.locator("canvas").wait_for()
        plot = chart.locator(".u-over")
        box = plot.bounding_box()
        page.mouse.move(box["x"] + box["width"] * 0.2, box["y"] + 50)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + 50, steps=5)
        with page.expect_response(re.compile("from=")) as answer:
            page.mouse.up()
        steps = answer.value.json()["charts"][0]["lines"][0]["steps"]
        assert 30_000 < steps[0] < 50_000 and 50_000 < steps[-1] < 70_000
        with page.expect_response(re.compile("from=")):
            chart.locator(".plot").press("+")
        chart.get_by_role("button", name="Show all steps").click()
        chart.get_by_role("button", name="Show all steps").wait_for(state="hidden")


def test_running_run_is_followed(browser: Any, address: str, state: Path) -> None:
    folder = new_run("live-0001", [started()], [progress(1)])
    lock = folder.lock()
    assert lock.acquire()
    with Visit(browser, address, "runs/live-0001") as page:
        page.locator("dd", has_text="step 1 /").wait_for()
        metrics = atomic_files.Lines(folder.metrics)
        metrics.append(progress(42))
        metrics.append(validated(42, 0.5, is_best=True))
        page.locator("dd", has_text="step 42 /").wait_for(timeout=10_000)
        page.get_by_text("50.0 %").first.wait_for()
        end(folder)
        lock.release()
        page.locator(".status.finished").wait_for(timeout=10_000)
        page.locator("td", has_text="finished").wait_for()
        metrics.close()


def end(folder: RunFolder) -> None:
    events = atomic_files.Lines(folder.events)
    events.append(finished())
    events.close()


def test_pages_without_javascript(browser: Any, address: str) -> None:
    for path in PAGES:
        with Visit(browser, address, path, java_script_enabled=False) as page:
            assert page.locator("h1").count() == 1
    with Visit(browser, address, "runs/digits-0001", java_script_enabled=False) as page:
        assert page.locator(".chart > svg").first.is_visible()
        keep_picture(page, "run-without-javascript")
        page.get_by_role("button", name="Español").click()
        page.get_by_role("heading", name="Curvas").wait_for()
        assert page.url.endswith("/runs/digits-0001")


@pytest.mark.parametrize("path", PAGES)
def test_nothing_that_a_run_contains_is_executed(browser: Any, address: str, path: str) -> None:
    for options in ({}, {"bypass_csp": True}):
        with Visit(browser, address, path, **options) as page:
            page.wait_for_timeout(200)
            assert page.title() != "RUN" and page.locator("img").count() == 0


@pytest.mark.parametrize("width", [360, 3840])
@pytest.mark.parametrize("path", PAGES)
def test_page_fits(browser: Any, address: str, path: str, width: int) -> None:
    size = {"width": width, "height": 800}
    for scheme in ("light", "dark"):
        with Visit(browser, address, path, viewport=size, color_scheme=scheme) as page:
            page.wait_for_timeout(200)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            keep_picture(page, f"{re.sub(r'[^a-z0-9]+', '-', path)}-{width}-{scheme}")


@pytest.mark.parametrize("path", PAGES)
def test_page_is_accessible(browser: Any, address: str, path: str) -> None:
    if find_spec("axe_playwright_python") is None:
        pytest.skip("needs axe-playwright-python (pip install axe-playwright-python)")
    from axe_playwright_python.sync_playwright import Axe

    for scheme in ("light", "dark"):
        with Visit(browser, address, path, color_scheme=scheme) as page:
            page.wait_for_timeout(300)
            found = Axe().run(page)
            assert found.violations_count == 0, found.generate_report()


def test_skip_link_is_the_first_that_the_keyboard_reaches(browser: Any, address: str) -> None:
    with Visit(browser, address, "runs") as page:
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "main"


def test_training_is_started_from_the_page(browser: Any, address: str) -> None:
    with Visit(browser, address, "runs") as page:
        page.get_by_role("link", name="Start a training").click()
        page.get_by_label("Experiment").select_option("digits")
        page.get_by_role("button", name="Choose").click()
        page.get_by_label("epochs", exact=True).fill("2")
        page.get_by_label("Device").select_option("cpu")
        page.get_by_role("button", name="Show the plan").click()
        page.get_by_text("flatout train digits -s epochs=2").wait_for()
        keep_picture(page, "train-plan")
        page.get_by_role("button", name="Start training").click()
        page.wait_for_url("**/runs/digits-*", timeout=120_000)
        page.locator(".status.finished").wait_for(timeout=120_000)
        keep_picture(page, "train-finished")


def test_digit_is_drawn_and_recognized(browser: Any, address: str, state: Path) -> None:
    pytest.importorskip("swagger_ui_bundle")
    environment = {**os.environ, "FLATOUT_STATE": str(state), "PYTHONPATH": str(SRC)}
    flatout = [sys.executable, "-P", "-m", "flatout"]
    trained = [*flatout, "train", "digits", "--name", "drawn", "--seed", "1", "--json"]
    subprocess.run(trained, env=environment, check=True, capture_output=True, timeout=300)
    serving = [*flatout, "serve", "drawn", "--port", "0", "--json"]
    with subprocess.Popen(serving, env=environment, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            while json.loads(server.stdout.readline())["event"] != "ready":
                pass
            with Visit(browser, address, "serve") as page:
                box = page.locator("canvas").bounding_box()
                x, y, side = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2, box["width"]
                page.mouse.move(x, y - 0.35 * side)
                page.mouse.down()
                page.mouse.move(x, y + 0.35 * side, steps=10)
                page.mouse.up()
                keep_picture(page, "serve-drawn")
                page.get_by_role("button", name="Recognize the drawing").click()
                assert page.locator(".answer").inner_text() == "1"
                keep_picture(page, "serve-recognized")
                page.get_by_role("button", name="Send the numbers").click()
                page.locator(".answer").wait_for()
        finally:
            server.terminate()
