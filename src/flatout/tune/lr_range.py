"""What a learning-rate range test tries, when it ends, and what follows from its losses.

Sources: L. N. Smith, "Cyclical Learning Rates for Training Neural Networks", WACV 2017,
https://arxiv.org/abs/1506.01186, for the test; fastai's `lr_find` for its exponential sweep, its
end at four times the best loss, and the suggestion where the loss falls fastest.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite, isnan

from flatout.errors import UsageError
from flatout.schema.lr_range import LrPoint, LrSweep

LEAST_STEPS = 20
# A loss is smoothed over this share of the test to each side. A running average would lag, and the
# suggestion with it, by about a factor of ten.
_SIDE_SHARE = 0.05
_DIVERGED_RATIO = 4.0


def check_sweep(sweep: LrSweep) -> None:
    """Refuses rates that are none, or the wrong way round, and too few steps.

    Raises:
        UsageError: bad-lr-range.
    """
    problem = None
    low, high = sweep.from_lr, sweep.to_lr
    if not (isfinite(low) and isfinite(high) and low > 0):
        problem, fix = f"{low:g} to {high:g} is no range of rates.", "give numbers above 0"
    elif low >= high:
        problem = f"the first rate, {low:g}, is not below the last, {high:g}."
        fix = f"exchange them: --from {high:g} --to {low:g}"
    elif sweep.num_steps < LEAST_STEPS:
        problem = f"--steps {sweep.num_steps} is too small."
        fix = f"use {LEAST_STEPS} or more, such as --steps 100"
    if problem is not None:
        raise UsageError("bad-lr-range", problem, fix=fix)


def rates(sweep: LrSweep) -> list[float]:
    """The rates, in order: equally far apart on a logarithmic scale."""
    ratio = sweep.to_lr / sweep.from_lr
    last = sweep.num_steps - 1
    return [sweep.from_lr * ratio ** (number / last) for number in range(sweep.num_steps)]


def newest_mean(losses: Sequence[float], sweep: LrSweep) -> float:
    """The mean of the newest few losses; infinite as long as there are fewer."""
    size = _side(sweep) + 1
    return sum(losses[-size:]) / size if len(losses) >= size else inf


def has_diverged(mean: float, best: float) -> bool:
    """Whether the mean of the newest losses is far above the best of them."""
    # Losses may be negative: four times the best, and as far above it.
    return mean > best + (_DIVERGED_RATIO - 1) * abs(best)


def points_of(lrs: Sequence[float], losses: Sequence[float], sweep: LrSweep) -> list[LrPoint]:
    """Rates with their losses, smoothed over the steps on both sides."""
    side = _side(sweep)
    windows = [losses[max(0, place - side) : place + side + 1] for place in range(len(losses))]
    return [
        LrPoint(lr=lr, loss=loss, smoothed=sum(window) / len(window))
        for lr, loss, window in zip(lrs, losses, windows, strict=False)
    ]


def suggested_lr(points: Sequence[LrPoint], sweep: LrSweep) -> tuple[float | None, str | None]:
    """The rate at which the smoothed loss falls fastest over the logarithm of the rate; or None,
    and why.
    """
    side = _side(sweep)
    smoothed = [point.smoothed for point in points]
    if len(points) < LEAST_STEPS // 2 or any(map(isnan, smoothed)):
        return None, "the loss diverged within a few steps: begin with a smaller rate"
    lowest = smoothed.index(min(smoothed))
    # At the ends there are fewer losses to smooth over.
    slopes = {
        place: smoothed[place + 1] - smoothed[place - 1]
        for place in range(max(1, side), min(lowest, len(points) - 2) + 1)
    }
    steepest = min(slopes, key=lambda place: slopes[place], default=None)
    if steepest is None or slopes[steepest] >= 0:
        return None, "the loss falls at none of these rates"
    return points[steepest].lr, None


def _side(sweep: LrSweep) -> int:
    return max(1, round(_SIDE_SHARE * sweep.num_steps))
