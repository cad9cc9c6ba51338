"""Speed-ups from the time that a change saves of a step."""

from __future__ import annotations

from flatout.schema.tuning import Interval

# Nothing takes no time at all.
_LEAST_LEFT = 0.02


def faster(step_s: float, saved: Interval, *, least_left: float = _LEAST_LEFT) -> Interval:
    """The speed-up of a step that is shorter by so many seconds.

    least_left: share of the step that stays in any case.
    """
    middle, low, high = (
        step_s / max(least_left * step_s, step_s - seconds)
        for seconds in (saved.middle, saved.low, saved.high)
    )
    return Interval(middle=middle, low=low, high=high)


def speedup_of(step_s: float, saved_s: float, *, doubt: float) -> Interval:
    """The same for an estimate. doubt: share of it by which it may be too high, and too low."""
    saved = Interval(
        middle=saved_s, low=saved_s * (1 - doubt), high=min(saved_s * (1 + doubt), step_s)
    )
    return faster(step_s, saved)
