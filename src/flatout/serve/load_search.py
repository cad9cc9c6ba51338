"""Which load to try next, to find the highest that holds a latency."""

from __future__ import annotations

import math
from collections.abc import Sequence

# Loads that are closer than this are one load: the next measurement would differ by as much.
_CLOSE = 1.1
MOST_STEPS = 20
_LEAST_RATE = 0.1
# At least this share of the requests must be answered in time.
HELD_SHARE = 0.99


def best_level(levels: Sequence[tuple[float, bool]]) -> float | None:
    """The highest load that was held, with none below it that was not."""
    limit = min((level for level, is_held in levels if not is_held), default=math.inf)
    return max((level for level, is_held in levels if is_held and level < limit), default=None)


def next_level(
    levels: Sequence[tuple[float, bool]], *, is_whole: bool, most: float
) -> float | None:
    """The load to try next; None when the highest is known closely enough.

    Args:
        levels: those tried, with whether each held the latency; at least one.
        is_whole: a number of users rather than a rate.
        most: what the generator can do.
    """
    if len(levels) >= MOST_STEPS:
        return None
    best = best_level(levels)
    lowest_broken = min((level for level, is_held in levels if not is_held), default=None)
    if lowest_broken is None:
        assert best is not None
        return min(2 * best, most) if best < most else None
    if best is None:
        lower = lowest_broken // 2 if is_whole else lowest_broken / 2
        return lower if lower >= (1 if is_whole else _LEAST_RATE) else None
    if lowest_broken / best <= _CLOSE:
        return None
    middle = math.sqrt(best * lowest_broken)
    if not is_whole:
        return middle
    middle = float(round(middle))
    return middle if best < middle < lowest_broken else None
