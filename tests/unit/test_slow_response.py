"""How a step answers to delays: the fit, its words, and a process that may not run all the time."""

from __future__ import annotations

import random
import re
import subprocess
import sys

import psutil
import pytest

from flatout.bench.slow_host import _response, settings_for
from flatout.bench.slow_response import Response, hinge, paired_ratio, response
from flatout.bench.slow_words import words_of
from flatout.cli.render.show_slow_host import print_slow_host
from flatout.schema.slow_host import (
    Level,
    QuotaResponse,
    SlowHostReady,
    SlowHostReport,
    SlowResponse,
)
from flatout.schema.tuning import Interval
from flatout.system.clock import elapsed_s, sleep_s
from flatout.system.duty_cycle import duty_cycle

DELAYS = (0.0, 5e-6, 10e-6, 20e-6, 40e-6)


def planted(hidden_s: float, slope: float, noise: float = 0.01) -> dict[float, list[float]]:
    """Steps of 1 ms, 15 rounds."""
    generator = random.Random(1)
    return {
        delay: [
            (1e-3 + slope * max(0.0, delay - hidden_s)) * (1 + generator.gauss(0, noise))
            for _ in range(15)
        ]
        for delay in DELAYS
    }


def answer(hidden_s: float, slope: float, own_s: float = 0.0) -> Response:
    """Of planted steps, to each of whose delays something adds own_s by itself."""
    levels = planted(hidden_s, slope)
    rest_s = levels.pop(0.0)
    return response(rest_s, {delay - own_s: levels[delay] for delay in levels}, [own_s] * 15)


def test_hinge_is_found_exactly_without_noise() -> None:
    steps = [1e-3 + 100 * max(0.0, delay - 1e-5) for delay in DELAYS]
    found = hinge(DELAYS, steps)
    assert found.slope == pytest.approx(100, rel=0.05)
    assert found.hidden_s == pytest.approx(1e-5, rel=0.05)


@pytest.mark.parametrize("hidden_s", [0.0, 1e-5, 1.5e-5])
def test_planted_slope_is_inside_the_interval(hidden_s: float) -> None:
    found = answer(hidden_s, 60.0)
    assert found.slope is not None and found.slope.low <= 60.5 and found.slope.high >= 59.5
    assert found.slope.middle == pytest.approx(60, rel=0.1)
    assert found.hidden_s.middle == pytest.approx(hidden_s, abs=3e-6)
    expected = 0.12 if hidden_s == 0 else 0.0
    assert found.cost.middle == pytest.approx(expected, abs=0.03)


def test_what_a_delay_takes_by_itself_is_part_of_it() -> None:
    alone, within = answer(1e-5, 60.0), answer(1e-5, 60.0, own_s=4e-6)
    assert within.hidden_s.middle == pytest.approx(alone.hidden_s.middle)
    assert within.slope == alone.slope


def test_nothing_is_felt_when_all_is_hidden() -> None:
    found = answer(1.0, 60.0)
    assert found.slope is None and found.hidden_s.middle == max(DELAYS)
    assert found.cost.high < 0.02


def test_slower_launches_cost_something_where_a_hidden_part_is_chance() -> None:
    # Of the seeds from 0, the first whose noise looks like 2 us that are hidden.
    generator = random.Random(24)
    levels = {
        delay: [(96e-3 + 587 * delay) * (1 + generator.gauss(0, 0.02)) for _ in range(15)]
        for delay in DELAYS
    }
    rest_s = levels.pop(0.0)
    found = response(rest_s, levels, [0.0] * 15)
    assert found.hidden_s.middle == 0 and found.hidden_s.high > 2e-6
    assert found.cost.low > 0.01 and found.cost.middle == pytest.approx(0.0122, rel=0.1)


def test_a_delay_makes_nothing_faster() -> None:
    assert hinge(DELAYS, [5.0, 4.0, 3.0, 2.0, 1.0]).slope == 0.0


def test_ratio_of_rounds_ignores_what_disturbs_both() -> None:
    base = [1.0, 5.0, 1.1, 0.9, 3.0]
    found = paired_ratio([2 * one for one in base], base)
    assert found.low == pytest.approx(2) and found.high == pytest.approx(2)


def test_intervals_are_wider_next_to_other_programs() -> None:
    base = [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    samples = [2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 5.0]
    assert paired_ratio(samples, base).high < 5
    assert paired_ratio(samples, base, is_busy=True).high == 5
    levels = planted(0.0, 60.0)
    rest_s = levels.pop(0.0)
    quiet, busy = (response(rest_s, levels, [0.0] * 15, is_busy=one) for one in (False, True))
    for narrow, wide in ((quiet.slope, busy.slope), (quiet.cost, busy.cost)):
        assert narrow is not None and wide is not None
        assert wide.low < narrow.low and wide.high > narrow.high


@pytest.mark.parametrize(("step_s", "longest"), [(1e-6, 4e-6), (1e-3, 2e-5), (10.0, 2e-3)])
def test_delays_are_of_the_size_of_a_launch(step_s: float, longest: float) -> None:
    ready = SlowHostReady(
        pid=1, torch="2", num_threads=1, num_launches=100, step_s=step_s, data="made up"
    )
    delays = [one.amount for one in settings_for(ready) if one.what == "operators"]
    assert delays[0] == 0.0 and delays[-1] == pytest.approx(longest)
    assert len(set(settings_for(ready))) == len(settings_for(ready))


def interval(middle: float, width: float = 0.1) -> Interval:
    return Interval(middle=middle, low=middle * (1 - width), high=middle * (1 + width))


def report(operators: SlowResponse, device: str = "cuda:0") -> SlowHostReport:
    return SlowHostReport(
        flatout="1", workload="mlp", size="small", device=device, name="RTX 2080 Ti", torch="2.13",
        num_threads=8, data="made up", step_s=interval(1e-3), mode_s=1e-6,
        operators=operators, loader=_response("loader", answer(0.0, 1.0), 1),
        quotas=(QuotaResponse(share=0.5, ratio=interval(1.9)),),
        levels=(
            Level(what="none", amount=0.0, samples=(1e-3, 1e-3)),
            Level(what="operators", amount=0.0, samples=(1e-3, 1e-3)),
            Level(what="operators", amount=2e-6, samples=(1.2e-3, 1.2e-3)),
            Level(what="host", amount=0.5, samples=(2e-3, 2e-3)),
        ),
        words=(),
    )  # fmt: skip


def test_words_say_how_much_is_hidden() -> None:
    hidden = _response("operators", answer(1e-5, 60.0), 60)
    words = list(words_of(report(hidden)))
    assert words[0].startswith("this workload hides up to 1") and "60 launches a step" in words[0]
    assert words[1].endswith("would cost nothing that can be measured")
    assert words[-1] == "with 50 % of the host's time a step takes x1.90 [1.71, 2.09]"


def test_words_say_what_slower_launches_cost() -> None:
    felt = _response("operators", answer(0.0, 60.0), 60)
    words = list(words_of(report(felt)))
    assert words[0].startswith("this workload hides nothing")
    assert "2 us slower launches would cost 1" in words[1] and "of the step's time" in words[1]


def test_words_when_nothing_was_felt() -> None:
    words = list(words_of(report(_response("operators", answer(1.0, 60.0), 60))))
    assert "nothing was felt" in words[0]


def test_report_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    print_slow_host(report(_response("operators", answer(0.0, 60.0), 60)))
    shown = capsys.readouterr().out
    assert "x1.20" in shown and "counted only" in shown
    assert re.search("50 % of the time +2 ms +x1.90", shown)


def test_process_may_run_in_a_share_of_the_time() -> None:
    code = "while True: pass"
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        try:
            watched = psutil.Process(process.pid)
            sleep_s(0.3)
            with duty_cycle(process.pid, 0.2):
                used_s, began_s = sum(watched.cpu_times()[:2]), elapsed_s()
                sleep_s(1.0)
                share = (sum(watched.cpu_times()[:2]) - used_s) / (elapsed_s() - began_s)
            assert share < 0.45
            assert watched.status() != psutil.STATUS_STOPPED
        finally:
            process.kill()


def test_duty_cycle_outlives_its_process() -> None:
    with (
        subprocess.Popen([sys.executable, "-c", "pass"]) as process,
        duty_cycle(process.pid, 0.5),
    ):
        process.wait(120)
        sleep_s(0.1)
