"""Which load is tried next."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.serve import load_search


def searched(first: float, limit: float, *, is_whole: bool, most: float = math.inf) -> list[float]:
    """The loads that are tried if all up to a limit hold the latency."""
    levels: list[tuple[float, bool]] = []
    level: float | None = first
    while level is not None:
        levels.append((level, level <= limit))
        level = load_search.next_level(levels, is_whole=is_whole, most=most)
    return [one for one, _ in levels]


def test_search_when_users_double_until_it_breaks() -> None:
    assert searched(1.0, 20, is_whole=True)[:6] == [1, 2, 4, 8, 16, 32]


def test_search_when_the_first_load_is_too_high() -> None:
    assert searched(100.0, 30, is_whole=False)[:3] == [100, 50, 25]


def test_search_when_no_load_holds() -> None:
    assert searched(4.0, 0, is_whole=True) == [4, 2, 1]


def test_search_when_the_generator_can_do_no_more() -> None:
    assert searched(30.0, 1000, is_whole=True, most=100.0) == [30, 60, 100]


@given(st.floats(0.5, 1e4), st.floats(1, 1e5))
def test_search_when_the_limit_is_anywhere(first: float, limit: float) -> None:
    tried = searched(first, limit, is_whole=False)
    assert len(tried) <= load_search.MOST_STEPS
    best = load_search.best_level([(one, one <= limit) for one in tried])
    if len(tried) < load_search.MOST_STEPS:
        assert best is not None and limit / 1.1 <= best <= limit


@given(st.integers(1, 400), st.integers(1, 400))
def test_search_when_users_are_whole(first: int, limit: int) -> None:
    tried = searched(float(first), float(limit), is_whole=True)
    assert all(one == int(one) for one in tried)
    best = load_search.best_level([(one, one <= limit) for one in tried])
    assert best is not None and limit / 1.1 - 1 <= best <= limit


@pytest.mark.parametrize(
    ("levels", "best"),
    [
        ([(1.0, True), (2.0, False), (4.0, True)], 1.0),
        ([(1.0, False), (2.0, True)], None),
        ([(1.0, True), (2.0, True)], 2.0),
    ],
)
def test_best_level_when_results_disagree(
    levels: list[tuple[float, bool]], best: float | None
) -> None:
    assert load_search.best_level(levels) == best
