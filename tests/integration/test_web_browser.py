"""`flatout web` in Debian's Chromium: what people do, without and with JavaScript.

With FLATOUT_SCREENSHOTS=DIR, pictures of the pages are kept in that folder.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from support.bench_results import keep, limits_file, workload_file
from support.step_profiles import line
from support.step_profiles import report as step_profile
from support.web_runs import (
    big_metrics,
    finished,
    new_run,
    progress,
    started,
    validated,
    web_app,
    whole_run,
)
from support.web_sweeps import LR, new_sweep, trial, whole_sweep

from flatout.schema.alarm import Alarm
from flatout.schema.finding import Finding, Fix
from flatout.schema.machine_sample import GpuSample, HostSample, MachineSample
from flatout.schema.plan import Plan, PlanStep, Write
from flatout.schema.sweep import Choices
from flatout.schema.web_request import WebExport
from flatout.system import atomic_files
from flatout.system.store.daily_files import DailyFiles, monitor_folder
from flatout.system.store.profile_reports import keep_report
from flatout.system.store.run_folder import RunFolder
from flatout.web import live_page
from flatout.web.api import export

SRC = Path(__file__).resolve().parents[2] / "src"
CHROMIUM = Path("/usr/bin/chromium")
TOKEN = "s3cret-token"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
ATTACK = "<script>document.title='RUN'</script><img src=x onerror=\"document.title='RUN'\">"
PAGES = ("home", "doctor", "explain", "live", "runs", "runs/digits-0001", "runs/failed-0001",
         "compare?run=digits-0001&run=digits-0002", "bench",
         "bench/compare?file=bench/a&file=bench/b&file=bench/run-mlp",
         "bench/platforms?file=bench/a&file=bench/wsl2", "profiles",
         "train?experiment=digits&plan=1", "cluster", "serve", "sweeps",
         "sweeps/digits-sweep-0001", "sweeps/long-sweep-0001")  # fmt: skip
# For what takes a moment on an idle machine.
LIMIT_MS = 120_000
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
    whole_sweep()
    new_sweep(
        "long-sweep-0001",
        [
            trial(1, 0.5, parameters={"lr": 0.1, "batch_size": ATTACK}),
            trial(2, 0.7, parameters={"lr": 0.01, "batch_size": ATTACK}),
        ],
        space={"lr": LR, "batch_size": Choices(values=(ATTACK, "wide" * 40))},
    )
    sampled(time.time() - 3000, 100)
    keep("limits/0123", limits_file(warnings=(ATTACK,)))
    keep("bench/a", limits_file())
    keep("bench/b", limits_file(1.5, warnings=(ATTACK,)))
    keep("bench/wsl2", limits_file(0.5, "WSL2"))
    keep("bench/run-mlp", workload_file(warnings=(ATTACK,)))
    keep_report(step_profile({"matrix": 8e-3, "host": 2e-3}, lines=(line(ATTACK, 2),)))
    yield folder
    if before is None:
        del os.environ["FLATOUT_STATE"]
    else:
        os.environ["FLATOUT_STATE"] = before


def setting_missing(file: Path) -> Finding:
    """A finding with a safe fix."""
    step = PlanStep(
        text="write the setting", action=Write(file=str(file), text="on\n"), changes="a file",
        safety="safe",
    )  # fmt: skip
    fix = Fix(text="write the setting", safety="safe", plan=Plan(goal="a setting", steps=(step,)))
    return Finding(
        rule="torch-cpu-only-build", severity="warning", problem="A setting is missing.",
        fixes=(fix,),
    )  # fmt: skip


def sampled(first_s: float, num: int, power_w: float = 200.0) -> None:
    """Samples of the monitor, every 20 seconds, and an alarm."""
    problem = "GPU 0 is slowed down."
    finding = Finding(rule="gpu-power-throttle", severity="warning", problem=problem)
    with DailyFiles(monitor_folder(), days=99, keep_bytes=1 << 30) as files:
        for number in range(num):
            files.append(MachineSample(
                at=first_s + 20 * number, source="nvml",
                host=HostSample(utilization=0.25, memory_bytes=16 << 30, available_bytes=12 << 30),
                gpus=(GpuSample(index=0, name="A GPU", utilization=0.5, power_w=power_w),),
            ))  # fmt: skip
        files.append_alarm(Alarm(at=first_s, state="raised", subject="GPU 0", finding=finding))


@pytest.fixture
def own_address(state: Path, tmp_path: Path) -> Iterator[str]:
    """The address of a server on a machine with a known finding; its fix writes `setting`."""
    import uvicorn

    app = web_app(findings=(setting_missing(tmp_path / "setting"),))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_config=None))
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def address(state: Path) -> Iterator[str]:
    """The address of a server of the command line."""
    argv = [sys.executable, "-P", "-m", "flatout", "web", "--port", "0", "--json"]
    environment = {**os.environ, "FLATOUT_STATE": str(state), "PYTHONPATH": str(SRC),
                   "FLATOUT_WEB_TOKEN": TOKEN}  # fmt: skip
    with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        text = ""
        while not text.rstrip().endswith("}"):
            line = server.stdout.readline()
            assert line, "the server has ended"
            text += line
        yield json.loads(text)["url"].partition("home?access=")[0]
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
        self.context = browser.new_context(extra_http_headers=BEARER, **options)
        self.context.set_default_timeout(LIMIT_MS)
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
        page.locator("dt", has_text="CPU").wait_for()
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


def test_printed_address_admits_the_browser(browser: Any, address: str) -> None:
    context = browser.new_context()
    context.set_default_timeout(LIMIT_MS)
    page = context.new_page()
    page.goto(f"{address}runs")
    assert "contains a token" in page.inner_text("body")
    page.goto(f"{address}home?access={TOKEN}")
    page.get_by_role("heading", name="Machine", exact=True).wait_for()
    assert TOKEN not in page.url
    assert [cookie["httpOnly"] for cookie in context.cookies()] == [True]
    page.get_by_role("button", name="Español").click()
    page.get_by_role("heading", name="Equipo", exact=True).wait_for()
    context.close()


@pytest.mark.parametrize("has_script", [True, False])
def test_fix_is_shown_applied_and_undone(
    browser: Any, own_address: str, tmp_path: Path, has_script: bool
) -> None:
    with Visit(browser, own_address, "doctor", java_script_enabled=has_script) as page:
        page.get_by_text("A setting is missing.").wait_for()
        keep_picture(page, f"doctor-{has_script}")
        page.get_by_role("link", name="Show the plan").click()
        page.get_by_role("heading", name="1. write the setting").wait_for()
        assert not (tmp_path / "setting").exists()
        keep_picture(page, "doctor-plan")
        page.get_by_role("button", name="Apply this fix").click()
        until_shown(page, "done: write the setting", has_script)
        assert (tmp_path / "setting").read_text() == "on\n"
        page.get_by_role("link", name="Show the undo").first.click()
        keep_picture(page, "doctor-undo")
        page.get_by_role("button", name="Undo this change").click()
        until_shown(page, "Undo: a setting", has_script)
        until_shown(page, "Ended", has_script)
        assert not (tmp_path / "setting").exists()


def until_shown(page: Any, text: str, has_script: bool) -> None:
    """Waits for a text of the change; without JavaScript, by loading the page again."""
    place = page.locator("#live-doctor section").first.get_by_text(text).first
    if has_script:
        place.wait_for()
        return
    until = time.monotonic() + LIMIT_MS / 1000
    while not place.is_visible():
        assert time.monotonic() < until
        page.reload()


def test_text_is_pasted_and_explained(browser: Any, own_address: str) -> None:
    text = "RuntimeError: unable to open shared memory object </torch_4242_12> in read-write mode: "
    for has_script in (True, False):
        with Visit(browser, own_address, "doctor", java_script_enabled=has_script) as page:
            page.get_by_label("A log, a traceback").fill(f"{text}No space left on device (28)")
            page.get_by_role("button", name="Find the cause").click()
            page.get_by_text("flatout explain shm-too-small").wait_for()
            keep_picture(page, "explain")


def test_live_page_follows_samples(
    browser: Any, own_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_page, "_POLL_S", 0.1)
    with Visit(browser, own_address, "live?hours=1") as page:
        page.locator(".chart canvas").first.wait_for()
        assert "200" in page.locator("#live-now tbody").inner_text()
        assert "GPU 0 is slowed down." in page.locator("#live-alarms").inner_text()
        keep_picture(page, "live")
        sampled(time.time(), 1, power_w=345.0)
        page.locator("#live-now tbody td", has_text="345").wait_for()
        chart = page.locator(".chart").first
        with page.expect_response(re.compile("from=")) as answer:
            chart.locator(".plot").press("+")
        assert answer.value.json()["charts"][0]["is_time"]
        page.get_by_role("link", name="30 days").click()
        page.wait_for_url("**hours=720")
        page.locator(".chart canvas").first.wait_for()


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
        url = f"{address}chart.json?run=long-0001&panel=loss"
        with urllib.request.urlopen(urllib.request.Request(url, headers=BEARER)) as answer:
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
        page.locator("dd", has_text="step 42 /").wait_for()
        page.get_by_text("50.0 %").first.wait_for()
        end(folder)
        lock.release()
        page.locator(".status.finished").wait_for()
        page.locator("td", has_text="finished").wait_for()
        metrics.close()


def end(folder: RunFolder) -> None:
    events = atomic_files.Lines(folder.events)
    events.append(finished())
    events.close()


def test_results_are_compared(browser: Any, address: str) -> None:
    with Visit(browser, address, "") as page:
        page.get_by_role("link", name="Bench", exact=True).click()
        page.locator("svg.roofline").first.wait_for()
        keep_picture(page, "bench")
        page.get_by_label("Compare a", exact=True).check()
        page.get_by_label("Compare wsl2").check()
        page.get_by_role("button", name="Compare the chosen results").click()
        page.get_by_role("heading", name="a against wsl2").or_(
            page.get_by_role("heading", name="wsl2 against a")
        ).wait_for()
        assert page.locator("td.bars svg.bar").count() > 3
        keep_picture(page, "bench-compare")
        page.get_by_role("link", name="Choose other results").click()
        page.get_by_label("Compare a", exact=True).check()
        page.get_by_label("Compare wsl2").check()
        page.get_by_role("button", name="As platforms, next to each other").click()
        page.get_by_role("heading", name="WSL2 against Linux").wait_for()
        keep_picture(page, "bench-platforms")


def test_copy_of_runs_is_opened_as_files(browser: Any, state: Path, tmp_path: Path) -> None:
    runs = ("digits-0001", "digits-0002", "failed-0001")
    copy = tmp_path / "copy"
    export(WebExport(folder=str(copy), runs=runs))
    with Visit(browser, f"file://{copy}/", "index.html") as page:
        assert page.evaluate("getComputedStyle(document.body).display") == "flex"
        keep_picture(page, "copy")
        page.get_by_role("link", name="Compare these runs").click()
        page.get_by_role("heading", name="Compare runs").wait_for()
        assert page.locator("figure svg[role=img]").first.is_visible()
        page.get_by_role("link", name="digits-0001").first.click()
        page.get_by_role("heading", name="digits-0001").wait_for()
        assert page.locator(".results dd").all_inner_texts() == ["0.25", "91.0 %"]
        keep_picture(page, "copy-run")
        page.get_by_role("link", name="flatout", exact=True).click()
        page.get_by_role("link", name="failed-0001").click()
        page.get_by_role("heading", name="failed-0001").wait_for()
        assert page.title() != "RUN" and page.locator("img").count() == 0


def test_pages_without_javascript(browser: Any, address: str) -> None:
    with Visit(browser, address, "", java_script_enabled=False) as page:
        for path in PAGES:
            page.goto(f"{address}{path}")
            assert page.locator("h1").count() == 1, path
        page.goto(f"{address}runs/digits-0001")
        assert page.locator(".chart > svg").first.is_visible()
        keep_picture(page, "run-without-javascript")
        page.get_by_role("button", name="Español").click()
        page.get_by_role("heading", name="Curvas").wait_for()
        assert page.url.endswith("/runs/digits-0001")


@pytest.mark.parametrize("path", PAGES)
def test_nothing_that_a_run_contains_is_executed(browser: Any, address: str, path: str) -> None:
    # With the policy of the page, it is looked for by test_page_is_accessible.
    with Visit(browser, address, path, bypass_csp=True) as page:
        page.wait_for_timeout(200)
        assert_nothing_ran(page)


def assert_nothing_ran(page: Any) -> None:
    assert page.title() != "RUN" and page.locator("img").count() == 0


@pytest.mark.parametrize("width", [360, 3840])
@pytest.mark.parametrize("path", PAGES)
def test_page_fits(browser: Any, address: str, path: str, width: int) -> None:
    size = {"width": width, "height": 800}
    with Visit(browser, address, path, viewport=size, color_scheme="light") as page:
        page.wait_for_timeout(200)
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            keep_picture(page, f"{re.sub(r'[^a-z0-9]+', '-', path)}-{width}-{scheme}")


@pytest.mark.parametrize("path", PAGES)
def test_page_is_accessible(browser: Any, address: str, path: str) -> None:
    # Loaded once for each: where the scheme changes, colors are for a moment in between.
    for scheme in ("light", "dark"):
        with Visit(browser, address, path, color_scheme=scheme) as page:
            page.wait_for_timeout(300)
            assert_nothing_ran(page)
            if find_spec("axe_playwright_python") is None:
                pytest.skip("needs axe-playwright-python (pip install axe-playwright-python)")
            from axe_playwright_python.sync_playwright import Axe

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
        page.wait_for_url("**/runs/digits-*")
        page.locator(".status.finished").wait_for()
        keep_picture(page, "train-finished")


def test_training_is_stopped_and_resumed_from_the_page(browser: Any, address: str) -> None:
    path = "train?experiment=digits&s.epochs=120&s.width=64&device=cpu&plan=1"
    with Visit(browser, address, path) as page:
        # It is sent once.
        page.get_by_role("button", name="Start training").dblclick()
        page.wait_for_url("**/runs/digits-*")
        run = page.url
        for _ in range(2):
            page.get_by_role("button", name="Stop").click()
            page.locator(".status.stopped").wait_for()
            keep_picture(page, "train-stopped")
            page.get_by_role("link", name="Resume").click()
            page.get_by_text("Continues from").wait_for()
            keep_picture(page, "train-resume")
            page.get_by_role("button", name="Resume").click()
            page.wait_for_url(run)
        page.get_by_role("button", name="Stop").click()
        page.locator(".status.stopped").wait_for()
        page.get_by_role("link", name="Runs", exact=True).click()
        assert page.locator("tbody tr", has_text="width=64").count() == 1


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
