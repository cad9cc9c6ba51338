"""How sure a measured speed-up is.

Two things measured in turns share what disturbs the machine, so their ratio is taken pair by pair.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from flatout.nouns.tuning import Interval

# 97.5 % quantiles of Student's t for 1 to 30 degrees of freedom.
# Source: NIST/SEMATECH e-Handbook of Statistical Methods, table 1.3.6.7.2.
_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
_T_LIMIT = 1.960

# Of the pairs on either side, the share that is not trusted: another program has taken the core.
_TRIMMED = 0.2


def speedup(pairs: Sequence[tuple[float, float]]) -> Interval:
    """How much faster the second of each pair is than the first.

    A trimmed mean of log ratios, with the interval of Tukey and McLaughlin (1963, Sankhya A 25,
    331-352): a single disturbed pair then says nothing, where it would widen an ordinary t
    interval. Of fewer than five pairs nothing is trimmed.

    Args:
        pairs: seconds that the incumbent and the candidate took for the same work; at least two.

    Returns:
        The ratio of speeds, with its 95 % confidence interval.
    """
    logs = sorted(math.log(before / after) for before, after in pairs)
    num_cut = int(_TRIMMED * len(logs))
    kept = logs[num_cut : len(logs) - num_cut]
    middle = fmean(kept)
    # Winsorized: what is cut off counts as the outermost that is kept.
    winsorized = [kept[0]] * num_cut + kept + [kept[-1]] * num_cut
    mean = fmean(winsorized)
    variance = sum((one - mean) ** 2 for one in winsorized) / (len(logs) - 1)
    error = math.sqrt(variance / len(logs)) * len(logs) / len(kept)
    return _interval(middle, error, len(kept) - 1)


def speedup_over_processes(speedups: Sequence[Interval]) -> Interval:
    """One speed-up from those of several fresh processes.

    Processes differ by more than the pairs within one tell (memory layout, thread placement), so
    the interval is made of the processes' means; it is never narrower than a single process's.
    """
    middles = [math.log(one.middle) for one in speedups]
    if len(middles) == 1:
        return speedups[0]
    middle = fmean(middles)
    variance = sum((one - middle) ** 2 for one in middles) / (len(middles) - 1)
    between = _interval(middle, math.sqrt(variance / len(middles)), len(middles) - 1)
    within_s = fmean(math.log(one.high / one.low) / 2 for one in speedups) / math.sqrt(len(middles))
    within = Interval(
        middle=between.middle,
        low=math.exp(middle - within_s),
        high=math.exp(middle + within_s),
    )
    return Interval(
        middle=between.middle,
        low=min(between.low, within.low),
        high=max(between.high, within.high),
    )


def _interval(log_middle: float, log_error: float, freedom: int) -> Interval:
    quantile = math.inf if freedom < 1 else _T[freedom - 1] if freedom <= len(_T) else _T_LIMIT
    half = quantile * log_error if log_error else 0.0
    return Interval(
        middle=math.exp(log_middle),
        low=math.exp(max(log_middle - half, -700.0)),
        high=math.exp(min(log_middle + half, 700.0)),
    )
