"""Whether two ways of training have come to the same result, within a tolerance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Literal

import msgspec

_Z = 1.6448536269514722

Verdict = Literal["equal", "different", "cannot tell"]


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
    verdict: Verdict


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
        reach = t_quantile(len(pairs) - 1) * stdev(pairs) / math.sqrt(len(pairs))
    low, high = mean - reach, mean + reach
    verdict: Verdict = "cannot tell"
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


def t_quantile(freedom: int) -> float:
    """The 95 % quantile of Student's t.

    Source: exact for 1 and 2 degrees of freedom; else Abramowitz and Stegun (1964), 26.7.5.
    """
    if freedom == 1:
        return math.tan(math.pi * 0.45)
    if freedom == 2:
        return 0.9 * math.sqrt(2 / (4 * 0.95 * 0.05))
    z = _Z
    return (
        z
        + (z**3 + z) / (4 * freedom)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    )
