"""How a step's time answers to a slower host: a flat part, where it hides, then a slope.

    t(x) = t0                  for x <= hidden
    t(x) = t0 + slope (x - hidden)   beyond

The best hidden part is looked for in a grid; for each, t0 and the slope are the least squares.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from statistics import fmean, median

import msgspec

from flatout.schema.tuning import Interval

_NUM_HINGES = 40
_NUM_RESAMPLES = 300
# Something hides only if that fits much better: with noise, some hidden part always fits a little.
_CLEARLY_BETTER = 0.7
# A step that is not longer by this has not answered: two runs of one program differ as much.
_LEAST_ANSWER = 0.03
# What a platform's launches may take longer.
SLOWER_LAUNCH_S = 2e-6


class Hinge(msgspec.Struct, frozen=True, kw_only=True):
    """A fit. rest_s: the step's time without delays; hidden_s: the delay that costs nothing."""

    rest_s: float
    hidden_s: float
    slope: float

    def at(self, delay_s: float) -> float:
        """The step's time with a delay."""
        return self.rest_s + self.slope * max(0.0, delay_s - self.hidden_s)


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """The fit with intervals. slope is None if nothing was felt at the longest delay.

    cost: of 2 us per launch, as a share of the step.
    """

    hidden_s: Interval
    slope: Interval | None
    cost: Interval


def hinge(delays_s: Sequence[float], steps_s: Sequence[float]) -> Hinge:
    """The best fit; delays and the step times with them, at least three."""
    longest = max(delays_s)
    best, least = None, math.inf
    for place in range(_NUM_HINGES):
        # Close together near 0, where 2 us make a difference.
        hidden_s = longest * (place / _NUM_HINGES) ** 2
        beyond = [max(0.0, delay - hidden_s) for delay in delays_s]
        fit = _line(beyond, steps_s, hidden_s)
        error = sum((fit.at(x) - y) ** 2 for x, y in zip(delays_s, steps_s, strict=True))
        if error < (_CLEARLY_BETTER * least if place else least):
            best, least = fit, error
    assert best is not None
    return best


def response(
    rest_s: Sequence[float],
    levels: Mapping[float, Sequence[float]],
    own_s: Sequence[float],
    *,
    is_busy: bool = False,
) -> Response:
    """The fit to a number of rounds, with 95 % bootstrap intervals.

    Args:
        rest_s: step times without anything, one of each round.
        levels: step times by delay, of the same rounds.
        own_s: what adding a delay takes by itself, in each round: it is a delay, too.
        is_busy: other programs ran; then the intervals span all resamples.
    """
    amounts = sorted(levels)
    num_rounds = min(len(rest_s), *(len(samples) for samples in levels.values()))

    def points(rounds: Sequence[int]) -> tuple[list[float], list[float]]:
        own = max(median([own_s[place] for place in rounds]), 0.0)
        steps_s = [median([levels[amount][place] for place in rounds]) for amount in amounts]
        without_s = median([rest_s[place] for place in rounds])
        return [0.0, *(own + amount for amount in amounts)], [without_s, *steps_s]

    generator = random.Random(0)
    measured = points(range(num_rounds))
    resampled = [
        points([generator.randrange(num_rounds) for _ in range(num_rounds)])
        for _ in range(_NUM_RESAMPLES)
    ]
    middle, fits = hinge(*measured), [hinge(*one) for one in resampled]
    hidden = _interval(middle.hidden_s, [one.hidden_s for one in fits], is_busy)
    if hidden.low <= 0:
        # Nothing is certain to be hidden: a hinge by chance must not make 2 us cost nothing.
        middle, fits = _line(*measured, 0.0), [_line(*one, 0.0) for one in resampled]
        hidden = Interval(middle=0.0, low=0.0, high=hidden.high)
    longest = amounts[-1] + max(median(own_s), 0.0)
    is_felt = middle.at(longest) > (1 + _LEAST_ANSWER) * middle.rest_s
    if not is_felt:
        hidden = Interval(middle=longest, low=min(hidden.low, longest), high=longest)
    return Response(
        hidden_s=hidden,
        slope=_interval(middle.slope, [one.slope for one in fits], is_busy) if is_felt else None,
        cost=_interval(
            middle.at(SLOWER_LAUNCH_S) / middle.rest_s - 1,
            [one.at(SLOWER_LAUNCH_S) / one.rest_s - 1 for one in fits],
            is_busy,
        ),
    )


def paired_ratio(
    samples: Sequence[float], base: Sequence[float], *, is_busy: bool = False
) -> Interval:
    """The median ratio of blocks of the same rounds, with a 95 % bootstrap interval.

    is_busy: other programs ran; then the interval spans the ratios of all rounds.
    """
    ratios = [after / before for after, before in zip(samples, base, strict=False)]
    if is_busy:
        return _interval(median(ratios), ratios, is_busy)
    generator = random.Random(0)
    medians = [median(generator.choices(ratios, k=len(ratios))) for _ in range(_NUM_RESAMPLES)]
    return _interval(median(ratios), medians, is_busy)


def _interval(middle: float, values: Sequence[float], is_busy: bool) -> Interval:
    ordered = sorted(values)
    cut = 0 if is_busy else int(0.025 * len(ordered))
    return Interval(
        middle=middle, low=min(ordered[cut], middle), high=max(ordered[-1 - cut], middle)
    )


def _line(x: Sequence[float], y: Sequence[float], hidden_s: float) -> Hinge:
    """The least squares, with a slope that is not negative: a delay makes nothing faster."""
    mean_x, mean_y = fmean(x), fmean(y)
    spread = sum((one - mean_x) ** 2 for one in x)
    slope = 0.0
    if spread > 0:
        slope = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / spread
    slope = max(slope, 0.0)
    return Hinge(rest_s=mean_y - slope * mean_x, hidden_s=hidden_s, slope=slope)
