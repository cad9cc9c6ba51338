"""The certainty of a ratio between two sets of samples that were not measured in turns.

Everything is done with logarithms: the ratio of B to A is exactly the inverse of that of A to B.
"""

from __future__ import annotations

import functools
import math
import operator
import random
from collections.abc import Callable, Iterator, Sequence
from statistics import NormalDist, fmean, median, quantiles

import msgspec

from flatout.schema.tuning import Interval

# With fewer samples on a side, a bootstrap interval is too narrow, and no rank test can reach 1 %.
LEAST_SAMPLES = 5
# Two runs of the same program on the same machine differ by as much (benchmarks/compare_trials.py).
LEAST_DIFFERENCE = 0.01
# False discovery rate over all rows and files of a comparison.
ERROR_RATE = 0.05

_NUM_RESAMPLES = 4000
# A drift is one if chance seldom does it, and if it is as large as what one looks for.
_DRIFT_Z, _LEAST_DRIFT = 2.58, 0.02
_LEAST_FOR_DRIFT = 8
# Samples that depend on each other count for fewer, but one can only estimate how much.
_LARGEST_CORRELATION = 0.8
_FENCE = 3.0
_Z = 1.96
_Take = Callable[[list[float]], tuple[float, ...]]


class RatioEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """How many times as large the second median is, with its interval.

    p_value: how often chance alone would put the samples that far apart (a rank test).
    """

    ratio: Interval
    p_value: float


def ratio_of_medians(
    first: Sequence[float], second: Sequence[float], processes: tuple[int, int] = (0, 0)
) -> RatioEstimate:
    """The ratio of two medians with its 95 % bootstrap interval.

    Args:
        first, second: positive samples in time order, at least one of each.
        processes: how many each was measured in, one after the other; 0 if unknown.

    Source: Efron and Tibshirani (1993), An Introduction to the Bootstrap, 13.3 (percentiles).
    """
    before, after = _logs(first), _logs(second)
    middle = _median(sorted(after)) - _median(sorted(before))
    differences = sorted(map(operator.sub, _resampled(after, 1), _resampled(before, 0)))
    cut = int(0.025 * _NUM_RESAMPLES)
    factor = max(dependence_factor(first, processes[0]), dependence_factor(second, processes[1]))
    low, high = differences[cut], differences[-1 - cut]
    return RatioEstimate(
        ratio=log_interval(middle, (middle - low) * factor, (high - middle) * factor),
        p_value=_rank_p_value(before, after, factor),
    )


def log_interval(middle: float, below: float, above: float) -> Interval:
    """An interval from its logarithms; what is beyond every number is the largest."""
    low, high = middle - max(below, 0.0), middle + max(above, 0.0)
    return Interval(middle=_exp(middle), low=_exp(low), high=_exp(high))


def mean_ratio(ratios: Sequence[Interval]) -> Interval:
    """The geometric mean of ratios: as wide as if all were wrong alike, as under a load."""
    middle, low, high = (
        fmean(map(math.log, ends))
        for ends in zip(*((one.middle, one.low, one.high) for one in ratios), strict=True)
    )
    return log_interval(middle, middle - low, high - middle)


def median_interval(samples: Sequence[float], num_processes: int = 0) -> Interval:
    """The median with its 95 % bootstrap interval."""
    logs = _logs(samples)
    middle, medians = _median(sorted(logs)), sorted(_resampled(logs, 0))
    cut, factor = int(0.025 * _NUM_RESAMPLES), dependence_factor(samples, num_processes)
    low, high = medians[cut], medians[-1 - cut]
    return log_interval(middle, (middle - low) * factor, (high - middle) * factor)


def spanning(interval: Interval, values: Sequence[float]) -> Interval:
    """The interval, widened to all values: what it is where other programs disturbed them."""
    return Interval(
        middle=interval.middle, low=min(interval.low, *values), high=max(interval.high, *values)
    )


def drift(samples: Sequence[float]) -> float | None:
    """By what share the last third differs from the first; None if there is no trend.

    Source: Spearman's rank correlation with the order in time, at 1 %.
    """
    num = len(samples)
    if num < _LEAST_FOR_DRIFT:
        return None
    ranks = _ranks(samples)
    correlation = _correlation(ranks, list(range(num)))
    third = num // 3
    change = median(samples[-third:]) / median(samples[:third]) - 1
    is_trend = abs(correlation) * math.sqrt(num - 1) > _DRIFT_Z
    return change if is_trend and abs(change) > _LEAST_DRIFT else None


def dependence_factor(samples: Sequence[float], num_processes: int = 0) -> float:
    """How many times wider an interval is because some samples resemble each other: those of the
    same process (memory layout, where threads run), or neighbors in time.

    Sources: Kish (1965), Survey Sampling, 5.4 (design effect); Box and Jenkins, the variance of a
    mean of an autoregressive process of the first order.
    """
    size = len(samples) // num_processes if num_processes else 0
    is_divided = num_processes > 1 and size > 1 and size * num_processes == len(samples)
    if is_divided:
        alike = _likeness_in_processes(_ranks(samples), size)
        alike = min(max(alike, 0.0), 1.0)
        # The more alike, the more the number of processes is what counts, not that of samples.
        few = 1 + alike * (t_quantile(0.975, 2 * num_processes - 2) / _Z - 1)
        return math.sqrt(1 + (size - 1) * alike) * few
    if len(samples) < _LEAST_FOR_DRIFT:
        return 1.0
    ranks = _ranks(samples)
    alike = _correlation(ranks[:-1], ranks[1:])
    if alike * math.sqrt(len(samples)) < 1:
        return 1.0
    alike = min(alike, _LARGEST_CORRELATION)
    return math.sqrt((1 + alike) / (1 - alike))


def t_quantile(share: float, freedom: int) -> float:
    """The value below which Student's t is with this share, such as 0.975.

    Source: exact for 1 and 2 degrees of freedom; else Abramowitz and Stegun (1964), 26.7.5.
    """
    if freedom == 1:
        return math.tan(math.pi * (share - 0.5))
    if freedom == 2:
        return (2 * share - 1) * math.sqrt(2 / (4 * share * (1 - share)))
    z = NormalDist().inv_cdf(share)
    return (
        z
        + (z**3 + z) / (4 * freedom)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    )


def _likeness_in_processes(values: Sequence[float], size: int) -> float:
    """The correlation of values of the same process, by the analysis of variance."""
    processes = [values[start : start + size] for start in range(0, len(values), size)]
    mean, means = fmean(values), [fmean(one) for one in processes]
    between = size * sum((one - mean) ** 2 for one in means) / (len(means) - 1)
    within = sum(
        (value - middle) ** 2 for one, middle in zip(processes, means, strict=True) for value in one
    ) / (len(values) - len(means))
    total = between + (size - 1) * within
    return (between - within) / total if total else 0.0


def outliers(samples: Sequence[float]) -> list[float]:
    """The samples beyond Tukey's outer fences (three times the middle half)."""
    if len(samples) < LEAST_SAMPLES:
        return []
    lower, _, upper = quantiles(_logs(samples), n=4, method="inclusive")
    reach = _FENCE * (upper - lower)
    return [one for one in samples if not lower - reach <= math.log(one) <= upper + reach]


def discoveries(p_values: Sequence[float], rate: float = ERROR_RATE) -> list[bool]:
    """Which differences count if all of them are looked at together.

    Source: Benjamini and Hochberg (1995, J. R. Stat. Soc. B 57, 289-300).
    """
    num, limit = len(p_values), -1.0
    for rank, value in enumerate(sorted(p_values), 1):
        if value <= rate * rank / num:
            limit = value
    return [value <= limit for value in p_values]


def _logs(samples: Sequence[float]) -> list[float]:
    return [math.log(sample) for sample in samples]


def _exp(value: float) -> float:
    return math.exp(min(max(value, -700.0), 700.0))


def _median(ordered: Sequence[float]) -> float:
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def _resampled(logs: Sequence[float], side: int) -> Iterator[float]:
    """The medians of samples drawn again with replacement."""
    halves = [value / 2 for value in sorted(logs)]
    lower, upper = _median_places(len(halves), side)
    return map(operator.add, lower(halves), upper(halves))


@functools.lru_cache(maxsize=64)
def _median_places(num: int, side: int) -> tuple[_Take, _Take]:
    """What takes the two middle ones of each resample from `num` ordered samples.

    Of `num` uniform numbers, the k-th smallest has a Beta distribution, so the resamples need not
    be drawn and sorted one by one. The same for all rows, and in every run.
    """
    generator = random.Random(num * 2 + side)
    draw = generator.betavariate
    lower, upper = [], []
    for _ in range(_NUM_RESAMPLES):
        if num % 2:
            first = second = draw((num + 1) / 2, (num + 1) / 2)
        else:
            first = draw(num / 2, num / 2 + 1)
            second = first + (1 - first) * draw(1, num / 2)
        lower.append(min(int(first * num), num - 1))
        upper.append(min(int(second * num), num - 1))
    return operator.itemgetter(*lower), operator.itemgetter(*upper)


def _ranks(values: Sequence[float]) -> list[float]:
    """From 1 on; equal values share the middle of their places."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end + 1 < len(order) and values[order[end + 1]] == values[order[start]]:
            end += 1
        for place in order[start : end + 1]:
            ranks[place] = (start + end) / 2 + 1
        start = end + 1
    return ranks


def _correlation(first: Sequence[float], second: Sequence[float]) -> float:
    mean_first, mean_second = fmean(first), fmean(second)
    left = [value - mean_first for value in first]
    right = [value - mean_second for value in second]
    spread = math.sqrt(sum(v * v for v in left) * sum(v * v for v in right))
    return sum(a * b for a, b in zip(left, right, strict=True)) / spread if spread else 0.0


def _rank_p_value(first: Sequence[float], second: Sequence[float], factor: float) -> float:
    """Mann and Whitney's test on both sides, with the normal distribution and ties."""
    num_first, num_second = len(first), len(second)
    num = num_first + num_second
    ranks = _ranks([*first, *second])
    statistic = sum(ranks[:num_first]) - num_first * (num_first + 1) / 2
    mean = num_first * num_second / 2
    mean_rank = (num + 1) / 2
    variance = num_first * num_second / (num * (num - 1)) * sum((r - mean_rank) ** 2 for r in ranks)
    if not variance:
        return 1.0
    distance = max(abs(statistic - mean) - 0.5, 0.0) / math.sqrt(variance) / factor
    # Not 1 - cdf: that is 0 from 8 standard deviations on.
    return math.erfc(distance / math.sqrt(2))
