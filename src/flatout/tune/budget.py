"""The time for a search: as requested, or a share of the run that it speeds up."""

from __future__ import annotations

from flatout.schema.tuning import TuneRequest

# An explicitly requested search may take this long, or as long as these many plain steps: with
# loading, a minute.
_FULL_S = 54.0
_FULL_STEPS = 12

# A run shorter than this is over before a search has paid; of a longer one, it may take this much.
_SHORT_RUN_S = 60.0
_SHARE_OF_RUN = 0.03

# One comparison of slow updates makes nine of them: of a run with fewer than this, more than that.
_LEAST_STEPS = 300


def is_too_short(request: TuneRequest, num_steps: int | None) -> bool:
    """Whether even the first look could cost a run more than a search may.

    Args:
        request: the tuning options.
        num_steps: of the run; None if unknown.
    """
    is_requested = request.mode == "full" or request.budget_s is not None
    return not is_requested and (num_steps or 0) < _LEAST_STEPS


def budget_of(request: TuneRequest, num_steps: int | None, step_s: float) -> float | None:
    """The time for the search, in seconds; None if it cannot pay.

    Args:
        request: the tuning options.
        num_steps: of the run; None if unknown.
        step_s: a plain step.
    """
    if request.budget_s is not None:
        return request.budget_s
    if request.mode == "full":
        return full_s(step_s)
    run_s = (num_steps or 0) * step_s
    return _SHARE_OF_RUN * run_s if run_s >= _SHORT_RUN_S else None


def full_s(step_s: float) -> float:
    """Duration of a search requested without a budget."""
    return max(_FULL_S, _FULL_STEPS * step_s)
