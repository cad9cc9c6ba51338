"""What a search may take: as long as was asked for, or a share of the run that it makes faster."""

from __future__ import annotations

from flatout.nouns.tuning import Wish

# A search that was asked for may take this long, or as long as these many plain steps: with
# loading, a minute.
_FULL_S = 54.0
_FULL_STEPS = 12

# A run shorter than this is over before a search has paid; of a longer one, it may take this much.
_SHORT_RUN_S = 60.0
_SHARE_OF_RUN = 0.03

# One comparison of slow updates makes nine of them: of a run with fewer than this, more than that.
_LEAST_STEPS = 300


def is_too_short(wish: Wish, num_steps: int | None) -> bool:
    """Whether even the first look could cost a run more than a search may.

    Args:
        wish: what a person wants of the search.
        num_steps: of the run; None where nobody knows.
    """
    is_asked_for = wish.mode == "full" or wish.budget_s is not None
    return not is_asked_for and (num_steps or 0) < _LEAST_STEPS


def budget_of(wish: Wish, num_steps: int | None, step_s: float) -> float | None:
    """What the search may take, in seconds; None where it cannot pay.

    Args:
        wish: what a person wants of the search.
        num_steps: of the run; None where nobody knows.
        step_s: a plain step.
    """
    if wish.budget_s is not None:
        return wish.budget_s
    if wish.mode == "full":
        return full_s(step_s)
    run_s = (num_steps or 0) * step_s
    return _SHARE_OF_RUN * run_s if run_s >= _SHORT_RUN_S else None


def full_s(step_s: float) -> float:
    """What a search takes that was asked for without a budget."""
    return max(_FULL_S, _FULL_STEPS * step_s)
