"""The live view of `flatout top`, operated by Textual's pilot."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator

import msgspec
import psutil
import pytest
from textual.pilot import Pilot
from textual.widgets import Static

from flatout.cli.render.top_app import EndQuestion, TopApp
from flatout.runs.top import end_process
from flatout.schema.machine_sample import GpuSample, HostSample, MachineSample
from flatout.schema.top_frame import TopFrame, TopProcess
from flatout.system.demo_frame import demo_frame
from flatout.system.demo_samples import demo_sample

DEMO = demo_frame(demo_sample(1_000_000.0))
Act = Callable[[TopApp, Pilot[None]], Awaitable[None]]


def operate(
    act: Act,
    take: Callable[[], TopFrame] = lambda: DEMO,
    end: Callable[[TopProcess], str | None] = lambda process: None,
    size: tuple[int, int] = (80, 24),
) -> TopApp:
    """Runs the view, with ten frames a second, and acts in it; gives it back once it is over."""
    app = TopApp(take, end, 0.1)

    async def run() -> None:
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await act(app, pilot)

    asyncio.run(run())
    return app


def shown(app: TopApp, name: str = "#lines") -> str:
    return str(app.screen_stack[0].query_one(name, Static).content)


def row_of(app: TopApp, word: str) -> int:
    return next(number for number, line in enumerate(shown(app).splitlines()) if word in line)


def test_view_shows_machine_runs_and_keys() -> None:
    async def act(app: TopApp, pilot: Pilot[None]) -> None:
        assert "RTX 3070" in shown(app) and "resnet50-0007" in shown(app)
        assert shown(app, "#keys").startswith("q quit  s sort: gpu memory  / filter")

    assert operate(act).failure is None


def test_s_and_r_change_the_order_of_processes() -> None:
    async def act(app: TopApp, pilot: Pilot[None]) -> None:
        assert row_of(app, "4190001") < row_of(app, "4190003")
        await pilot.press("s")
        assert "sort: cpu" in shown(app, "#keys")
        assert row_of(app, "4190003") < row_of(app, "4190001")
        await pilot.press("r")
        assert row_of(app, "4190001") < row_of(app, "4190003")

    operate(act)


def test_filter_is_typed_and_cleared() -> None:
    async def act(app: TopApp, pilot: Pilot[None]) -> None:
        # q and k are letters here.
        await pilot.press("slash", *"xorgqk", "backspace", "backspace", "enter")
        await pilot.pause()
        assert "Xorg" in shown(app) and "4190001" not in shown(app)
        await pilot.press("escape")
        assert "4190001" in shown(app)
        await pilot.press("slash", "a", "escape")
        await pilot.pause()
        assert "4190001" in shown(app)

    operate(act)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        yield process
        process.kill()


def frame_with(process: TopProcess) -> TopFrame:
    return msgspec.structs.replace(DEMO, processes=(process,))


def test_process_is_ended_only_after_yes(sleeper: subprocess.Popen[bytes]) -> None:
    created_at = psutil.Process(sleeper.pid).create_time()
    own = TopProcess(pid=sleeper.pid, name="python", is_mine=True, created_at=created_at)

    async def act(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("k")
        assert "choose a process first" in shown(app, "#keys")
        for answer in ("n", "enter", "escape"):
            await pilot.press("down", "k")
            assert isinstance(app.screen, EndQuestion)
            assert str(sleeper.pid) in str(app.screen.query_one("#question", Static).content)
            await pilot.press(answer)
            await pilot.pause()
            assert sleeper.poll() is None
        await pilot.press("k", "y")
        await pilot.pause()
        assert "asked process" in shown(app, "#keys")

    operate(act, lambda: frame_with(own), end_process)
    assert sleeper.wait(60) != 0


def test_number_that_is_another_process_by_now_is_not_ended(
    sleeper: subprocess.Popen[bytes],
) -> None:
    old = TopProcess(pid=sleeper.pid, name="python", is_mine=True, created_at=1.0)

    async def act(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("down", "k", "y")
        await pilot.pause()
        assert "it has ended" in shown(app, "#keys")

    operate(act, lambda: frame_with(old), end_process)
    assert sleeper.poll() is None


def test_process_of_another_user_is_not_asked_about() -> None:
    async def act(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("down", "down", "k")
        assert not isinstance(app.screen, EndQuestion)
        assert "belongs to root" in shown(app, "#keys")

    operate(act, end=lambda process: pytest.fail("nothing may be ended"))


def test_any_size_is_survived() -> None:
    async def act(app: TopApp, pilot: Pilot[None]) -> None:
        for width, height in ((20, 10), (1, 1), (200, 60), (20, 24), (80, 24)):
            await pilot.resize_terminal(width, height)
            await pilot.pause(0.05)
            longest = max(len(line) for line in shown(app).splitlines())
            assert longest <= max(width, 8)
            await pilot.press("down", "pagedown", "pageup")
        assert "resnet50-0007" in shown(app)

    assert operate(act).failure is None


def test_gpu_that_vanishes_while_watching_is_gone_not_zero() -> None:
    both = MachineSample(
        at=1.0, host=HostSample(), source="nvml",
        gpus=(GpuSample(index=0, uuid="a", name="A", utilization=1.0),
              GpuSample(index=1, uuid="b", name="B", utilization=1.0)),
    )  # fmt: skip
    left = msgspec.structs.replace(both, gpus=both.gpus[:1])
    none = msgspec.structs.replace(both, gpus=(), source="none", reason="NVML: GPU is lost")
    machines = [both]

    async def act(app: TopApp, pilot: Pilot[None]) -> None:
        machines[0] = left
        await pilot.pause(0.4)
        assert "gone" in shown(app).splitlines()[row_of(app, "1 B")]
        machines[0] = none
        await pilot.pause(0.4)
        assert "gone" in shown(app).splitlines()[row_of(app, "0 A")]
        assert "NVML: GPU is lost" in shown(app)

    assert operate(act, lambda: TopFrame(machine=machines[0])).failure is None


def test_pause_keeps_the_frame() -> None:
    times = iter(range(10_000))

    def take() -> TopFrame:
        return TopFrame(machine=MachineSample(at=float(next(times)) * 60, host=HostSample()))

    async def act(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("p")
        before = shown(app)
        assert "p continue" in shown(app, "#keys")
        await pilot.pause(0.4)
        assert shown(app) == before
        await pilot.press("p")
        await pilot.pause(0.4)
        assert shown(app) != before

    operate(act, take)


def test_failure_of_the_feed_ends_the_view_and_is_kept() -> None:
    def take() -> TopFrame:
        raise ValueError("a bug")

    async def act(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.pause()

    assert isinstance(operate(act, take).failure, ValueError)


def test_control_characters_of_a_name_do_not_reach_the_terminal() -> None:
    hostile = TopProcess(pid=1, name="a\x1b[2Jb", is_mine=True)

    async def act(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("down", "k")
        question = str(app.screen.query_one("#question", Static).content)
        assert "\x1b" not in shown(app) + question
        await pilot.press("n")

    operate(act, lambda: frame_with(hostile))
