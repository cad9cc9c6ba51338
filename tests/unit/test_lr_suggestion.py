"""Rates of a range test, its end, and the suggestion, from losses alone."""

from __future__ import annotations

from math import inf, log10, nan

import pytest

from flatout.cli.render.show_lr import shown_points
from flatout.errors import UsageError
from flatout.schema.lr_range import LrRange, LrSweep
from flatout.tune.lr_range import (
    check_sweep,
    has_diverged,
    newest_mean,
    points_of,
    rates,
    suggested_lr,
)

SWEEP = LrSweep(from_lr=1e-6, to_lr=1.0, num_steps=61)


def losses_falling_at(lr: float, depth: float = 2.0) -> list[float]:
    """A loss that falls most around a rate, and grows from the largest but a few on."""
    falling = [3 - depth / (1 + (lr / one) ** 2) for one in rates(SWEEP)]
    return [loss + max(0, place - 55) ** 2 for place, loss in enumerate(falling)]


def test_rates_are_equally_far_apart() -> None:
    found = rates(SWEEP)
    assert (found[0], found[-1]) == pytest.approx((1e-6, 1.0))
    steps = [log10(b / a) for a, b in zip(found, found[1:], strict=False)]
    assert steps == pytest.approx([0.1] * 60)


@pytest.mark.parametrize("lr", [1e-4, 1e-3, 1e-2])
def test_suggestion_is_where_the_loss_falls_fastest(lr: float) -> None:
    points = points_of(rates(SWEEP), losses_falling_at(lr), SWEEP)
    found, reason = suggested_lr(points, SWEEP)
    assert found == pytest.approx(lr, rel=0.3) and reason is None


def test_nothing_is_suggested_when_nothing_falls() -> None:
    points = points_of(rates(SWEEP), [3.0] * 61, SWEEP)
    assert suggested_lr(points, SWEEP) == (None, "the loss falls at none of these rates")
    rising = points_of(rates(SWEEP), [1.0 + place for place in range(61)], SWEEP)
    assert suggested_lr(rising, SWEEP)[0] is None


def test_nothing_is_suggested_when_it_diverges_at_once() -> None:
    lr, reason = suggested_lr(points_of(rates(SWEEP), [1.0, 9.0], SWEEP), SWEEP)
    assert lr is None and reason is not None and "smaller rate" in reason


def ends(losses: list[float]) -> bool:
    """Whether the last of these losses ends a test."""
    means = [newest_mean(losses[:end], SWEEP) for end in range(1, len(losses) + 1)]
    return has_diverged(means[-1], min(means))


def test_four_times_the_best_ends_it() -> None:
    assert not ends([1.0] * 8 + [3.9] * 4)
    assert ends([1.0] * 8 + [4.1] * 4)
    # A single batch is not enough.
    assert not ends([1.0] * 8 + [4.1])
    # A loss below zero, as of a log-likelihood of densities.
    assert not ends([-1.0] * 8 + [1.9] * 4)
    assert ends([-1.0] * 8 + [2.1] * 4)


@pytest.mark.parametrize(
    "fields",
    [
        {"from_lr": 1.0, "to_lr": 0.1}, {"from_lr": 0.0}, {"from_lr": -1.0}, {"from_lr": nan},
        {"to_lr": inf}, {"num_steps": 19},
    ],
)  # fmt: skip
def test_impossible_range_is_refused(fields: dict[str, float]) -> None:
    with pytest.raises(UsageError) as refused:
        check_sweep(LrSweep(**fields))  # type: ignore[arg-type]
    assert refused.value.rule == "bad-lr-range"


def test_table_has_a_dozen_rows_and_the_suggestion() -> None:
    points = tuple(points_of(rates(SWEEP), losses_falling_at(1e-3), SWEEP))
    lr, _ = suggested_lr(points, SWEEP)
    result = LrRange(name="x", device="cpu", sweep=SWEEP, points=points, lr=lr)
    shown = shown_points(result)
    assert 12 <= len(shown) <= 13 and lr in [point.lr for point in shown]
    few = LrRange(name="x", device="cpu", sweep=SWEEP, points=points[:3], lr=None)
    assert shown_points(few) == list(points[:3])
