"""How sure a measured speed-up is."""

from __future__ import annotations

import math
import random

from hypothesis import given
from hypothesis import strategies as st

from flatout.schema.tuning import Decision, Interval, Known, Load, TuneRequest
from flatout.tune.cache import cache_key, is_of_use, still_holds
from flatout.tune.statistics import mean_load, speedup, speedup_over_processes

seconds = st.floats(1e-6, 1e3)


@given(st.lists(st.tuples(seconds, seconds), min_size=2, max_size=40))
def test_the_middle_lies_in_its_interval_and_among_the_ratios(
    pairs: list[tuple[float, float]],
) -> None:
    found = speedup(pairs)
    ratios = [before / after for before, after in pairs]
    assert found.low <= found.middle * (1 + 1e-12) and found.middle <= found.high * (1 + 1e-12)
    assert min(ratios) * 0.999 <= found.middle <= max(ratios) * 1.001


@given(st.lists(st.tuples(seconds, seconds), min_size=2, max_size=20), st.floats(0.1, 10))
def test_a_faster_candidate_is_faster_by_as_much(
    pairs: list[tuple[float, float]], factor: float
) -> None:
    before = speedup(pairs)
    after = speedup([(first, second / factor) for first, second in pairs])
    assert math.isclose(after.middle, before.middle * factor, rel_tol=1e-9)


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    generator = random.Random(0)
    num_held = 0
    for _ in range(1000):
        logs = [generator.gauss(math.log(1.1), 0.05) for _ in range(10)]
        found = speedup([(math.exp(log), 1.0) for log in logs])
        num_held += found.low <= 1.1 <= found.high
    assert 920 <= num_held <= 985


def test_one_disturbed_pair_does_not_hide_a_difference() -> None:
    pairs = [(1.10 + 0.001 * number, 1.0) for number in range(10)]
    found = speedup([*pairs, (1.0, 9.0)])
    assert found.low > 1.05


def of_processes(*middles: float) -> Interval:
    return speedup_over_processes(
        [Interval(middle=m, low=m * 0.99, high=m * 1.01) for m in middles]
    )


def test_processes_that_differ_widen_the_interval() -> None:
    assert 1.0 < of_processes(1.1, 1.1, 1.1).low < 1.05
    assert of_processes(1.0, 1.1, 1.2).low < 1.0


def test_more_processes_that_agree_narrow_the_interval() -> None:
    lows = [of_processes(*[1.1] * num).low for num in range(1, 10)]
    assert lows == sorted(lows) and lows[0] < 0.95 and lows[-1] > 1.07


def test_a_single_process_is_known_to_differ_from_others() -> None:
    one = of_processes(1.5)
    assert 1.2 < one.low < 1.3


def test_one_process_that_shows_the_opposite_leaves_it_open_until_there_are_nine() -> None:
    assert of_processes(3.0, 3.2, 3.1, 0.3).low < 0.31
    assert of_processes(*[3.0] * 7, 0.3).low < 0.31
    assert of_processes(*[3.0] * 8, 0.3).low > 1.5


def test_the_middle_of_processes_does_not_follow_one_that_is_far_off() -> None:
    assert of_processes(1.1, 1.12, 40.0).middle == 1.12


def test_the_median_of_what_processes_are_drawn_from_lies_in_the_interval() -> None:
    """Whatever that is: here one of four is slower or faster by up to 20 times."""
    generator = random.Random(1)
    for num in (6, 7, 9):
        num_held = 0
        for _ in range(1000):
            logs = [generator.gauss(0, 0.02) for _ in range(num)]
            odd = [generator.uniform(-3, 3) if generator.random() < 0.25 else 0 for _ in logs]
            found = of_processes(*[math.exp(a + b) for a, b in zip(logs, odd, strict=True)])
            num_held += found.low <= 1.0 <= found.high
        assert num_held >= 950


def test_loads_are_averaged_over_the_time_that_they_lasted() -> None:
    assert mean_load([]) is None and mean_load([(None, 3.0)]) is None
    found = mean_load([(Load(other_cpus=1.0, num_cpus=2), 3.0),
                       (Load(other_cpus=2.0, num_cpus=2), 1.0), (None, 9.0)])  # fmt: skip
    assert found == Load(other_cpus=1.25, num_cpus=2)


def test_a_key_is_the_same_for_the_same_facts_in_any_order() -> None:
    assert cache_key({"a": 1, "b": [2]}) == cache_key({"b": [2], "a": 1})
    assert cache_key({"a": 1}) != cache_key({"a": 2})


def test_a_recipe_holds_while_a_probe_agrees_within_ten_percent() -> None:
    found = Interval(middle=2.0, low=1.95, high=2.05)
    assert still_holds(found, Interval(middle=1.9, low=1.85, high=1.95))
    assert not still_holds(found, Interval(middle=1.6, low=1.55, high=1.65))
    # A probe that does not know cannot refute it.
    assert still_holds(found, Interval(middle=1.6, low=1.0, high=2.6))


def known(*, is_default: bool, is_thorough: bool, budget_s: float = 60.0) -> Known:
    decision = Decision(
        changes={}, is_default=is_default, rungs=(), lost=(), refused=(), skipped=(),
        speedup=None, why="", search_s=1.0,
    )  # fmt: skip
    return Known(
        identity={}, decided_at=0.0, is_thorough=is_thorough, budget_s=budget_s, decision=decision
    )


def test_what_a_hurried_search_did_not_find_may_be_there_all_the_same() -> None:
    run, thorough = TuneRequest(mode="auto"), TuneRequest(mode="full")
    assert not is_of_use(known(is_default=True, is_thorough=False), run)
    assert is_of_use(known(is_default=False, is_thorough=False), run)
    assert is_of_use(known(is_default=True, is_thorough=True), run)
    assert not is_of_use(known(is_default=False, is_thorough=False), thorough)
    assert is_of_use(known(is_default=True, is_thorough=True), thorough)


def test_a_search_that_is_given_more_time_than_the_last_one_is_made() -> None:
    short = known(is_default=False, is_thorough=False, budget_s=3.0)
    assert is_of_use(short, TuneRequest(mode="full", budget_s=3.0))
    assert not is_of_use(short, TuneRequest(mode="full", budget_s=60.0))
    full = known(is_default=True, is_thorough=True, budget_s=60.0)
    assert not is_of_use(full, TuneRequest(mode="full", budget_s=300.0))
