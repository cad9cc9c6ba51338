"""The inputs of a search, and the time for its parts."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from flatout.schema.tuning import Candidate, Decision, Profile, Rung, Skip
from flatout.schema.units import seconds_text

# How many pairs of fresh processes decide.
NUM_PROCESSES = 3

# Of the whole search, what a single measurement may take; the least and most seconds for it.
_TRIAL_SHARE = 1 / 24
_TRIAL_S = (0.3, 3.0)

# Measuring takes about as many updates as this: building, proof of effect, warm-up, pairs of
# blocks. Of updates that take long, fewer are made.
_UPDATES_PER_TRIAL = 16
_UPDATES_PER_SLOW_TRIAL = 9
_LEAST_TRIAL_S = 0.5
_SLOW_SHARE = 1 / 8

# Blocks of quick steps take about this long; with so many pairs of them, it is not they that make
# the last word uncertain.
_SHORT_BLOCK_S = 0.06
_ENOUGH_PAIRS = 12

# The two processes of a pair start at the same time, and each gets in the other's way.
_START_OF_TWO = 2.0

# The last word may take this share of a search.
MOST_OF_BUDGET = 0.6

# What is named as enough time for a trial is this much more than it seems to take.
_MARGIN = 1.5


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """The problem that a search solves.

    base: flatout's defaults. candidates: in the order in which to try.
    budget_s: what all trials together may take. spent_s: what the search has taken before them.
    is_bound: it may take no longer, not even for the first trial.
    can_start: other processes can load the experiment; a notebook's exists only there.
    plain_name, baseline: of the plain loop, and what it needs to fit into the memory.
    num_steps: of the run to tune; None if unknown.
    decided: by a search before, for uncompiled candidates; None if still undecided.
    """

    base: Candidate
    candidates: tuple[Candidate, ...]
    skipped: tuple[Skip, ...]
    profile: Profile
    budget_s: float
    batch_size: int
    can_start: bool
    spent_s: float = 0.0
    is_bound: bool = False
    plain_name: str = "plain loop"
    baseline: dict[str, Any] = {}
    num_steps: int | None = None
    decided: Decision | None = None

    @property
    def limit_s(self) -> float:
        """The limit of a measurement, in seconds; of slow updates it takes longer."""
        least_s, most_s = _TRIAL_S
        return min(most_s, max(least_s, _TRIAL_SHARE * self.budget_s))

    @property
    def trial_s(self) -> float:
        """About what a trial takes in the process that is there."""
        step_s = self.profile.step_s
        if is_slow(step_s, self.limit_s):
            return _UPDATES_PER_SLOW_TRIAL * step_s
        return max(_LEAST_TRIAL_S, self.limit_s / 2, _UPDATES_PER_TRIAL * step_s)

    @property
    def process_s(self) -> float:
        """About what a trial takes in a pair of fresh processes."""
        return _START_OF_TWO * self.profile.start_s + self.trial_s

    @property
    def num_processes(self) -> int:
        """Pairs of fresh processes that decide; fewer where they would take most of the time."""
        num_affordable = int(MOST_OF_BUDGET * self.budget_s / self.process_s)
        return min(NUM_PROCESSES, num_affordable) if self.can_start else 0

    @property
    def final_effort(self) -> int:
        """The factor by which the final measurements may be longer in each process.

        Of slow steps there are few pairs of blocks in a process, and more of them narrow the
        interval for less than starting another pair of processes does.
        """
        num_pairs = self.limit_s / (2 * max(self.profile.step_s, _SHORT_BLOCK_S))
        takes_s = self.num_processes * (self.process_s + self.limit_s)
        is_affordable = takes_s <= MOST_OF_BUDGET * self.budget_s
        return 2 if num_pairs < _ENOUGH_PAIRS and is_affordable else 1

    @property
    def final_s(self) -> float:
        """About what the measurement takes that decides: it is kept back from the rest.

        Where blocks are plenty it is the processes that differ, and a fourth pair of them may be
        needed.
        """
        more_s = (self.final_effort - 1) * self.limit_s
        if not self.num_processes:
            return self.trial_s + more_s
        one_more = (self.num_processes + 1) * self.process_s <= MOST_OF_BUDGET * self.budget_s
        num_pairs = self.num_processes + (1 if self.final_effort == 1 and one_more else 0)
        return num_pairs * (self.process_s + more_s)

    @property
    def num_trials(self) -> int:
        """The number of trials before the last one that there is time for."""
        return int((self.budget_s - self.final_s) / self.trial_s)


def plain_rung(problem: Problem, samples_per_s: float | None) -> Rung:
    """The plain loop, as it was measured, or by a single step of it."""
    estimated = problem.batch_size / max(problem.profile.step_s, 1e-9)
    return Rung(
        name=problem.plain_name,
        changes=problem.baseline,
        samples_per_s=samples_per_s or estimated,
    )


def unmeasured(problem: Problem) -> Decision:
    """The end where there is no time for a single trial."""
    spent_s, whole_s = problem.spent_s, problem.spent_s + problem.budget_s
    enough_s = math.ceil(_MARGIN * (spent_s + problem.trial_s))
    return Decision(
        is_default=True,
        is_decided=False,
        changes=dict(problem.base.changes),
        rungs=(plain_rung(problem, None),),
        lost=(),
        refused=(),
        skipped=problem.skipped,
        speedup=None,
        why=f"no time for a trial: {seconds_text(spent_s)} of {seconds_text(whole_s)} passed "
        f"before the first, and one takes about {seconds_text(problem.trial_s)}; a search of "
        f"{enough_s} s would be enough",
        search_s=spent_s,
        has_measured=False,
    )


def out_of_time(candidate: Candidate, reason: str) -> Skip:
    """A candidate for which the search has no time."""
    return Skip(name=candidate.name, axis=candidate.axis, reason=reason, is_for_time=True)


def is_slow(step_s: float, limit_s: float) -> bool:
    """Whether so few updates fit into a measurement of that length that fewer must do."""
    return step_s > _SLOW_SHARE * limit_s
