"""How sure a measured speed-up is."""

from __future__ import annotations

import math
import random

from hypothesis import given
from hypothesis import strategies as st

from flatout.nouns.tuning import Decision, Interval, Known, Wish
from flatout.tune.cache import cache_key, is_of_use, still_holds
from flatout.tune.statistics import speedup, speedup_over_processes

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


def test_processes_that_differ_widen_the_interval() -> None:
    alike = [Interval(middle=1.10, low=1.09, high=1.11)] * 3
    apart = [Interval(middle=m, low=m - 0.01, high=m + 0.01) for m in (1.0, 1.1, 1.2)]
    assert speedup_over_processes(alike).low > 1.09
    assert speedup_over_processes(apart).low < 0.9


def test_a_single_process_speaks_for_itself() -> None:
    one = Interval(middle=1.5, low=1.4, high=1.6)
    assert speedup_over_processes([one]) == one


def test_a_key_is_the_same_for_the_same_facts_in_any_order() -> None:
    assert cache_key({"a": 1, "b": [2]}) == cache_key({"b": [2], "a": 1})
    assert cache_key({"a": 1}) != cache_key({"a": 2})


def test_a_recipe_holds_while_a_probe_agrees_within_ten_percent() -> None:
    found = Interval(middle=2.0, low=1.95, high=2.05)
    assert still_holds(found, Interval(middle=1.9, low=1.85, high=1.95))
    assert not still_holds(found, Interval(middle=1.6, low=1.55, high=1.65))
    # A probe that does not know cannot refute it.
    assert still_holds(found, Interval(middle=1.6, low=1.0, high=2.6))


def known(*, is_plain: bool, is_thorough: bool, budget_s: float = 60.0) -> Known:
    decision = Decision(
        changes={}, is_plain=is_plain, rungs=(), lost=(), refused=(), skipped=(),
        speedup=None, why="", search_s=1.0,
    )  # fmt: skip
    return Known(
        identity={}, decided_at=0.0, is_thorough=is_thorough, budget_s=budget_s, decision=decision
    )


def test_what_a_hurried_search_did_not_find_may_be_there_all_the_same() -> None:
    run, thorough = Wish(mode="auto"), Wish(mode="full")
    assert not is_of_use(known(is_plain=True, is_thorough=False), run)
    assert is_of_use(known(is_plain=False, is_thorough=False), run)
    assert is_of_use(known(is_plain=True, is_thorough=True), run)
    assert not is_of_use(known(is_plain=False, is_thorough=False), thorough)
    assert is_of_use(known(is_plain=True, is_thorough=True), thorough)


def test_a_search_that_is_given_more_time_than_the_last_one_is_made() -> None:
    short = known(is_plain=False, is_thorough=False, budget_s=3.0)
    assert is_of_use(short, Wish(mode="full", budget_s=3.0))
    assert not is_of_use(short, Wish(mode="full", budget_s=60.0))
    full = known(is_plain=True, is_thorough=True, budget_s=60.0)
    assert not is_of_use(full, Wish(mode="full", budget_s=300.0))
