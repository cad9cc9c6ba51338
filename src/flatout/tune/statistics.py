"""The certainty of a measured speed-up.

Two things measured in turns share what disturbs the machine, so their ratio is taken pair by pair.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median

from flatout.schema.tuning import Interval, Load

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

# By how much the gain of a recipe differs from one pair of processes to the next, where nothing
# else is at work (LOG.md, 2026-11-22), and for how many measured differences that counts.
_PROCESS_SPREAD, _PROCESS_FREEDOM = 0.06, 3

# Beyond it, numbers would no longer be finite.
_LARGEST_LOG = 700.0


def speedup(pairs: Sequence[tuple[float, float]]) -> Interval:
    """The speed-up of the second of each pair over the first.

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
    trimmed = logs[num_cut : len(logs) - num_cut]
    middle = fmean(trimmed)
    # Winsorized: what is cut off counts as the outermost that is kept.
    winsorized = [trimmed[0]] * num_cut + trimmed + [trimmed[-1]] * num_cut
    mean = fmean(winsorized)
    variance = sum((value - mean) ** 2 for value in winsorized) / (len(logs) - 1)
    error = math.sqrt(variance / len(logs)) * len(logs) / len(trimmed)
    return _interval(middle, error, len(trimmed) - 1)


def speedup_over_processes(speedups: Sequence[Interval]) -> Interval:
    """One speed-up from those of several fresh processes.

    Processes differ by more than the pairs within one tell (memory layout, where threads are put),
    and now and then by factors: where two threads share a CPU with another program, the process
    is many times slower from its start to its end. So the interval is as wide as the widest of
    three: what the processes' spread says, for which few of them are helped out by what is known
    of others; what the pairs within them say; and from the slowest to the fastest process, of
    which the outermost are left out once there are enough that chance alone seldom puts the
    truth beyond them.

    Args:
        speedups: of each process; of a single one, the interval is that of one in which nothing
            but itself has been seen.
    """
    logs = sorted(math.log(speedup.middle) for speedup in speedups)
    middle = median(logs)
    num = len(logs)
    known, freedom = _PROCESS_FREEDOM * _PROCESS_SPREAD**2, _PROCESS_FREEDOM + num - 1
    spread = math.sqrt((known + sum((log - middle) ** 2 for log in logs)) / freedom)
    between = _quantile(freedom) * spread / math.sqrt(num)
    within = fmean(math.log(speedup.high / speedup.low) / 2 for speedup in speedups) / math.sqrt(
        num
    )
    num_cut = _outermost(num)
    half = math.hypot(between, min(within, _LARGEST_LOG))
    return Interval(
        middle=math.exp(middle),
        low=math.exp(max(min(middle - half, logs[num_cut]), -_LARGEST_LOG)),
        high=math.exp(min(max(middle + half, logs[-1 - num_cut]), _LARGEST_LOG)),
    )


def product(first: Interval, second: Interval) -> Interval:
    """The product of two speed-ups: as wide as if both were wrong alike."""
    return Interval(
        middle=first.middle * second.middle,
        low=first.low * second.low,
        high=first.high * second.high,
    )


def _outermost(num: int) -> int:
    """The number of values to leave out on each side, so that the median of their distribution is
    between the others in at least 95 of 100 cases, whatever the distribution is.

    The sign test: each number is above the median or below it, with the same chance.
    """
    num_cut, tail = 0, 1
    while 2 * (tail + math.comb(num, num_cut + 1)) <= 0.05 * 2**num:
        num_cut += 1
        tail += math.comb(num, num_cut)
    return num_cut


def mean_load(loads: Sequence[tuple[Load | None, float]]) -> Load | None:
    """The average of loads, each with the seconds that it lasted; None where none is known."""
    known = [(load, took_s) for load, took_s in loads if load is not None]
    total_s = sum(took_s for _, took_s in known)
    if not total_s:
        return None
    other_cpus = sum(load.other_cpus * took_s for load, took_s in known) / total_s
    return Load(other_cpus=other_cpus, num_cpus=known[0][0].num_cpus)


def _quantile(freedom: int) -> float:
    if freedom < 1:
        return math.inf
    return _T[freedom - 1] if freedom <= len(_T) else _T_LIMIT


def _interval(log_middle: float, log_error: float, freedom: int) -> Interval:
    half = _quantile(freedom) * log_error if log_error else 0.0
    return Interval(
        middle=math.exp(log_middle),
        low=math.exp(max(log_middle - half, -_LARGEST_LOG)),
        high=math.exp(min(log_middle + half, _LARGEST_LOG)),
    )
