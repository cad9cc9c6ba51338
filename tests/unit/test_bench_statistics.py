"""Ratios of samples that were not measured in turns, and how certain they are."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.bench.statistics import (
    dependence_factor,
    discoveries,
    drift,
    mean_ratio,
    median_interval,
    outliers,
    ratio_of_medians,
    t_quantile,
)
from flatout.schema.tuning import Interval

values = st.floats(1e-30, 1e30)
samples = st.lists(values, min_size=1, max_size=30)


@settings(deadline=None, max_examples=50)
@given(samples, samples, st.integers(0, 6))
def test_ratio_of_medians_is_finite_and_in_its_interval(
    first: list[float], second: list[float], num: int
) -> None:
    found = ratio_of_medians(first, second, (num, num))
    ends = (found.ratio.low, found.ratio.middle, found.ratio.high)
    assert all(map(math.isfinite, ends)) and ends[0] > 0
    assert ends[0] <= ends[1] * (1 + 1e-9) and ends[1] <= ends[2] * (1 + 1e-9)
    assert 0 <= found.p_value <= 1


@settings(deadline=None, max_examples=30)
@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=15), st.floats(0.01, 100))
def test_ratio_of_medians_when_scaled(first: list[float], factor: float) -> None:
    found = ratio_of_medians(first, [factor * one for one in first])
    assert math.isclose(found.ratio.middle, factor, rel_tol=1e-9)


@given(samples)
def test_everything_else_survives_any_samples(found: list[float]) -> None:
    assert 1 <= dependence_factor(found) <= 3
    assert set(outliers(found)) <= set(found)
    change = drift(found)
    assert change is None or math.isfinite(change)
    assert median_interval(found).low > 0


@given(st.lists(st.floats(0, 1), max_size=50))
def test_discoveries_are_the_smallest_p_values(p_values: list[float]) -> None:
    found = discoveries(p_values)
    counted = [value for value, is_found in zip(p_values, found, strict=True) if is_found]
    others = [value for value, is_found in zip(p_values, found, strict=True) if not is_found]
    assert not counted or not others or max(counted) <= min(others)


def test_discoveries_when_a_p_value_is_zero() -> None:
    assert discoveries([0.0, 0.9]) == [True, False]


def test_p_value_of_hundreds_of_samples_is_small_not_zero() -> None:
    numbers = random.Random(0).sample(range(1, 301), 300)
    found = ratio_of_medians(numbers, [number + 300 for number in numbers])
    assert 0 < found.p_value < 1e-60


def test_discoveries_when_many_rows_are_compared() -> None:
    assert discoveries([0.04]) == [True]
    assert discoveries([0.04] + [0.5] * 19) == [False] * 20
    assert discoveries([0.001] * 10 + [0.9]) == [True] * 10 + [False]


def test_interval_holds_the_truth_as_often_as_it_says() -> None:
    generator = random.Random(0)
    num_held = 0
    for _ in range(300):
        first, second = ([math.exp(generator.gauss(0, 0.05)) for _ in range(9)] for _ in range(2))
        ratio = ratio_of_medians(first, second).ratio
        num_held += ratio.low <= 1 <= ratio.high
    assert num_held >= 276


def test_one_outlier_does_not_hide_a_difference() -> None:
    first = [1.003, 1.0, 1.005, 1.001, 1.004, 0.999, 1.002, 1.006, 0.998]
    found = ratio_of_medians([*first, 9.0], [1.1 * one for one in first])
    assert found.ratio.low > 1.05 and found.p_value < 0.05


def test_dependence_factor_when_processes_differ() -> None:
    alike = [1.0, 1.001, 0.999, 1.0, 1.1, 1.101, 1.099, 1.1, 0.9, 0.901, 0.899, 0.9]
    assert dependence_factor(alike, 3) > 1.9
    generator = random.Random(0)
    independent = [generator.gauss(1, 0.01) for _ in range(40)]
    assert dependence_factor(independent, 8) < 1.5


def test_dependence_factor_when_processes_do_not_divide_the_samples() -> None:
    assert dependence_factor([1.0, 1.1, 1.2], 2) == 1.0
    assert dependence_factor([1.0, 1.1, 1.2], 3) == 1.0


def test_drift_when_it_gets_slower() -> None:
    found = drift([1 + 0.01 * number for number in range(12)])
    assert found is not None and math.isclose(found, 0.0788, rel_tol=0.01)


def test_drift_when_there_is_none_or_it_is_small() -> None:
    assert drift([1.0, 1.1] * 6) is None
    assert drift([1 + 0.0001 * number for number in range(12)]) is None


def test_outliers_are_those_far_from_the_others() -> None:
    assert outliers([1.0, 1.01, 1.02, 0.99, 0.98, 2.0]) == [2.0]
    assert outliers([1.0, 2.0]) == []


def test_mean_ratio_is_as_wide_as_if_all_were_wrong_alike() -> None:
    one = Interval(middle=2.0, low=1.0, high=4.0)
    found = mean_ratio([one, one])
    assert [round(end, 9) for end in (found.low, found.middle, found.high)] == [1.0, 2.0, 4.0]


@pytest.mark.parametrize(
    ("share", "freedom", "expected"),
    [
        (0.95, 1, 6.3138), (0.95, 2, 2.9200), (0.95, 3, 2.3534), (0.95, 4, 2.1318),
        (0.95, 30, 1.6973), (0.975, 1, 12.7062), (0.975, 2, 4.3027), (0.975, 4, 2.7764),
    ],
)  # fmt: skip
def test_t_quantile_is_that_of_the_tables(share: float, freedom: int, expected: float) -> None:
    assert t_quantile(share, freedom) == pytest.approx(expected, rel=4e-3)
