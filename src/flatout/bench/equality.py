"""Whether two ways of training have come to the same result, within a tolerance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Literal

import msgspec

from flatout.bench.statistics import t_quantile

EqualityVerdict = Literal["equal", "different", "cannot tell"]


class Equality(msgspec.Struct, frozen=True, kw_only=True):
    """The mean difference of the second from the first, with its 90 % interval.

    low, high: the mean twice if there is one pair.
    tolerance: up to which they count as equal. num_seeds: pairs.
    """

    difference: float
    low: float
    high: float
    tolerance: float
    num_seeds: int
    verdict: EqualityVerdict


def equality(first: Sequence[float], second: Sequence[float], tolerance: float) -> Equality:
    """Two one-sided tests at 5 % on pairs of the same seed.

    Args:
        first, second: results by seed, in the same order of seeds.
        tolerance: positive, in the unit of the results.

    Source: Schuirmann (1987), J. Pharmacokinet. Biopharm. 15, 657-680: equal if the whole 90 %
    interval of the difference is within the tolerance.
    """
    pairs = [b - a for a, b in zip(first, second, strict=True)]
    mean = fmean(pairs)
    reach = math.inf
    if len(pairs) > 1:
        reach = t_quantile(0.95, len(pairs) - 1) * stdev(pairs) / math.sqrt(len(pairs))
    low, high = mean - reach, mean + reach
    verdict: EqualityVerdict = "cannot tell"
    if -tolerance < low and high < tolerance:
        verdict = "equal"
    elif low > tolerance or high < -tolerance:
        verdict = "different"
    is_known = math.isfinite(reach)
    return Equality(
        difference=mean,
        low=low if is_known else mean,
        high=high if is_known else mean,
        tolerance=tolerance,
        num_seeds=len(pairs),
        verdict=verdict,
    )
