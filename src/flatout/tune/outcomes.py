"""Outcomes of a search: the meaning of each result, and the doubts that remain."""

from __future__ import annotations

from collections.abc import Sequence

from flatout.schema.tuning import Load, Result, Skip
from flatout.tune.statistics import mean_load

# A rung may be smaller than a recipe's gain: several of them together can make that up.
_LEAST_RUNG = 1.005

# With other programs running, times differ by this much regardless of the candidate.
_NEARLY = 0.8


class Outcomes:
    """The outcomes of a search so far.

    results: of all trials. lost, refused: of those that are out. skipped: what was not tried.
    """

    def __init__(self, skipped: Sequence[Skip]) -> None:
        self.results: list[Result] = []
        self.lost: list[Result] = []
        self.refused: list[Result] = []
        self.skipped = list(skipped)

    @property
    def spent_s(self) -> float:
        """The time of all trials."""
        return sum(result.cost_s for result in self.results)

    @property
    def load(self) -> Load | None:
        """The load of other programs on the machine, on average over all trials."""
        return load_of(self.results)

    @property
    def doubt(self) -> str | None:
        """The doubts about "nothing is faster", in words; None if there are none."""
        return doubt(self.lost, self.skipped, self.load)


def load_of(results: Sequence[Result]) -> Load | None:
    """The average load of trials; None where it was not measured."""
    return mean_load([(result.load, result.cost_s) for result in results])


def is_faster(result: Result) -> bool:
    """Whether the candidate of a trial was faster than its incumbent, beyond doubt."""
    gain = result.speedup
    return gain is not None and gain.low > 1.0 and gain.middle >= _LEAST_RUNG


def is_unclear(result: Result) -> bool:
    """Whether a candidate that lost may be faster all the same."""
    gain = result.speedup
    if gain is None:
        return False
    if result.is_busy and gain.low <= 1.0 and gain.middle >= _NEARLY:
        return True
    return gain.low <= 1.0 and gain.middle >= _LEAST_RUNG


def is_out_of_memory(result: Result) -> bool:
    """Whether it could not be measured because memory ran out."""
    return result.problem is not None and result.problem.rule == "out-of-memory"


def is_late(result: Result) -> bool:
    """Whether it could not be measured because the time of the search was over."""
    return result.problem is not None and result.problem.rule == "search-out-of-time"


def problem_of(result: Result) -> str:
    """The reason why a trial has no result, in words."""
    return result.problem.problem if result.problem is not None else "it could not be measured"


def doubt(lost: Sequence[Result], skipped: Sequence[Skip], load: Load | None) -> str | None:
    """The doubts about "nothing is faster", in words; None if there are none.

    Args:
        lost: results of candidates that did not win.
        skipped: candidates that were not tried.
        load: of the machine by other programs during the search.
    """
    if load is not None and load.is_busy:
        return f"other programs used {load.text} during the search"
    unclear = [result for result in lost if result.trial.stage == "screen" and is_unclear(result)]
    late = [skip for skip in skipped if skip.is_for_time]
    if unclear:
        return (
            f"{unclear[0].trial.candidate.name} may be faster, but its times varied too much to "
            "decide"
        )
    if late:
        others = f" and {len(late) - 1} more" if len(late) > 1 else ""
        return f"not enough time to try {late[0].name}{others}"
    return None
