"""What to measure next, and when to stop: a function of what has been measured.

The search climbs a ladder. It begins with the plain loop; the candidates of each axis are tried
beside the incumbent, and the fastest that passes the gate becomes the next rung. What has come out
on top is measured against the plain loop in fresh processes: it wins only if it is at least 3 %
faster with 95 % confidence, else the plain loop stays.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import msgspec

from flatout.nouns.tuning import (
    Candidate,
    Decision,
    Interval,
    Profile,
    Result,
    Rung,
    Skip,
    Trial,
)  # fmt: skip
from flatout.tune.candidates import jump
from flatout.tune.ladder import Ladder
from flatout.tune.statistics import speedup_over_processes

# What a recipe must gain, with 95 % confidence, to be worth being another than the plain one.
LEAST_GAIN = 1.03

# A rung may be smaller: several of them together can make up the gain.
_LEAST_RUNG = 1.005

# How many pairs of fresh processes decide, and how many at most where those leave it open. Each
# further look has its own 5 % chance of an error: of what gains exactly 3 %, up to five pairs take
# 5 % for more, and up to nine 8 % (simulated, with 3 % between pairs).
NUM_PROCESSES = 3
_MOST_PROCESSES = 5

# Of the whole search, what a single measurement may take; the least and most seconds for it.
_TRIAL_SHARE = 1 / 24
_TRIAL_S = (0.3, 3.0)

# Measuring takes about as many updates as this: building, proof of effect, warm-up, pairs of
# blocks. Of updates that take long, fewer are made.
_UPDATES_PER_TRIAL = 16
_UPDATES_PER_SLOW_TRIAL = 9
_LEAST_TRIAL_S = 0.5
_SLOW_SHARE = 1 / 8

# The two processes of a pair start at the same time, and each gets in the other's way.
_START_OF_TWO = 2.0

# The last word may take this share of a search.
_MOST_OF_BUDGET = 0.6

# A search that has no time for this many trials before the last one makes one jump instead.
_FEWEST_TRIALS = 4

# Axes that decide about each other: bf16 may win only where the layout suits it.
_TOGETHER = (frozenset({"precision", "memory format"}), frozenset({"precision", "threads"}))


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be decided.

    base: flatout's loop at a plain loop's settings. candidates: in the order in which to try.
    budget_s: what all trials together may take. can_start: other processes can load the experiment;
    a notebook's exists only there.
    plain_name, baseline: of the plain loop, and what it needs to fit into the memory.
    """

    base: Candidate
    candidates: tuple[Candidate, ...]
    skipped: tuple[Skip, ...]
    profile: Profile
    budget_s: float
    batch_size: int
    can_start: bool
    plain_name: str = "plain loop"
    baseline: dict[str, Any] = {}

    @property
    def limit_s(self) -> float:
        """What a measurement may take, in seconds; of slow updates it takes longer."""
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
        """Pairs of fresh processes that decide; none where they would take most of the time."""
        takes_s = NUM_PROCESSES * self.process_s
        is_affordable = takes_s <= _MOST_OF_BUDGET * self.budget_s
        return NUM_PROCESSES if self.can_start and is_affordable else 0

    @property
    def final_effort(self) -> int:
        """How many times as long as others the last word may be measured in each process.

        A pair of processes takes as long to start as it is measured: more pairs of blocks in it
        narrow the interval for less than another pair of processes.
        """
        takes_s = self.num_processes * (self.process_s + self.limit_s)
        return 2 if takes_s <= _MOST_OF_BUDGET * self.budget_s else 1

    @property
    def final_s(self) -> float:
        """About what the measurement takes that decides: it is kept back from the rest."""
        more_s = (self.final_effort - 1) * self.limit_s
        return max(1, self.num_processes) * (
            more_s + (self.process_s if self.num_processes else self.trial_s)
        )

    @property
    def num_trials(self) -> int:
        """For how many trials before the last one there is time."""
        return int((self.budget_s - self.final_s) / self.trial_s)


def next_move(problem: Problem, history: Sequence[Result]) -> Trial | Decision:
    """What to measure next, or how the search ends.

    Args:
        problem: what is to be decided.
        history: the results of all trials asked for so far, in their order.
    """
    moves = _Search(problem).moves()
    try:
        move = next(moves)
        for result in history:
            move = moves.send(result)
    except StopIteration as end:
        decision: Decision = end.value
        return decision
    return move


# A part of a search: asks for trials, is sent their results.
_Moves = Generator[Trial, Result, Any]


class _Search:
    """A search under way; it is begun anew and replayed whenever something is asked of it."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._ladder = Ladder()
        self._lost: list[Result] = []
        self._refused: list[Result] = []
        self._skipped = list(problem.skipped)
        self._spent_s = 0.0

    def moves(self) -> Generator[Trial, Result, Decision]:
        """Every trial in turn; the decision is what is returned at the end."""
        problem = self._problem
        together = jump(problem.candidates)
        if problem.num_trials < _FEWEST_TRIALS:
            alone: Decision = yield from self._jump_alone(together)
            return alone
        base = yield from self._try_base()
        if base.speedup is None:
            return self._decision(None, _problem_of(base))
        if together is not None and problem.num_trials < len(problem.candidates):
            yield from self._try_axis([together])
        for axis in dict.fromkeys(candidate.axis for candidate in problem.candidates):
            yield from self._try_axis([c for c in problem.candidates if c.axis == axis])
        yield from self._try_losers_again()
        decision: Decision = yield from self._finish()
        return decision

    def _jump_alone(self, together: Candidate | None) -> _Moves:
        """One comparison, of what usually helps with the plain loop: no time for more."""
        problem = self._problem
        candidate = together or problem.base
        changes = {**problem.base.changes, **candidate.changes}
        reason = f"no time in a search of {problem.budget_s:.0f} s"
        self._skipped += [
            Skip(name=other.name, axis=other.axis, reason=reason)
            for other in problem.candidates
            if not other.changes.items() <= changes.items()
        ]
        result = yield Trial(stage="screen", candidate=candidate, incumbent=None, changes=changes)
        self._spent_s += result.cost_s
        self._begin(result)
        if is_faster(result) and (result.verdict is None or result.verdict.is_passed):
            self._ladder.climb(result)
        elif result.verdict is None:
            self._lost.append(result)
        return self._decided(result)

    def _begin(self, result: Result) -> None:
        """Puts the plain loop on the ground, as the first trial has measured it."""
        problem = self._problem
        estimated = problem.batch_size / max(problem.profile.step_s, 1e-9)
        plain = Rung(
            name=problem.plain_name,
            changes=problem.baseline,
            samples_per_s=result.incumbent_samples_per_s or estimated,
        )
        self._ladder.begin(plain)

    def _try_base(self) -> _Moves:
        base = self._problem.base
        result = yield Trial(
            stage="screen", candidate=base, incumbent=None, changes=dict(base.changes)
        )
        self._spent_s += result.cost_s
        self._begin(result)
        if result.speedup is not None:
            self._ladder.climb(result)
        return result

    def _try_axis(self, candidates: list[Candidate], effort: int = 1) -> _Moves:
        """Tries the alternatives of one axis; the fastest correct one becomes the next rung."""
        before = self._ladder.changes
        best: Result | None = None
        for candidate in candidates:
            if candidate.changes.items() <= before.items():
                # It has come along with something else.
                continue
            result = yield from self._try(candidate, before, effort)
            if result is None:
                continue
            if is_faster(result) and result.verdict and not result.verdict.is_passed:
                self._refused.append(result)
            elif is_faster(result) and (best is None or _gain(result) > _gain(best)):
                self._lost += [best] if best is not None else []
                best = result
            else:
                self._lost.append(result)
        if best is not None:
            self._ladder.climb(best)

    def _try(self, candidate: Candidate, before: dict[str, Any], effort: int) -> _Moves:
        problem = self._problem
        if candidate.needs is not None and not before.get(candidate.needs):
            reason = f"without {candidate.needs} it does nothing"
            self._skipped.append(Skip(name=candidate.name, axis=candidate.axis, reason=reason))
            return None
        is_alone = candidate.is_process_wide and problem.can_start
        cost_s = effort * (problem.process_s if is_alone else problem.trial_s)
        if self._spent_s + cost_s + problem.final_s > problem.budget_s:
            reason = f"no time left in a search of {problem.budget_s:.0f} s"
            self._skipped.append(Skip(name=candidate.name, axis=candidate.axis, reason=reason))
            return None
        result = yield Trial(
            stage="screen",
            candidate=candidate,
            incumbent=before,
            changes={**before, **candidate.changes},
            num_processes=1 if is_alone else 0,
            effort=effort,
        )
        self._spent_s += result.cost_s
        return result

    def _try_losers_again(self) -> _Moves:
        """Tries what lost once more: where an axis has been won since that decides about it, and
        where it may well be faster, but too little was measured to say so."""
        for result in list(self._lost):
            candidate = result.trial.candidate
            won = self._ladder.won_since(result.trial.incumbent or {})
            is_related = any(frozenset({candidate.axis, axis}) in _TOGETHER for axis in won)
            if self._ladder.has_won(candidate.axis) or not (is_related or _is_unclear(result)):
                continue
            self._lost.remove(result)
            yield from self._try_axis([candidate], 2 if _is_unclear(result) else 1)

    def _finish(self) -> _Moves:
        """Measures what has come out on top against the plain loop, where nothing is warm."""
        problem = self._problem
        result = yield from self._measure_whole(problem.num_processes)
        if problem.num_processes and _is_out_of_memory(result):
            # Two processes share nothing; in one, the second has what the first has freed.
            result = yield from self._measure_whole(0)
        # Three and one more are far surer than three: Student's quantile falls by a third.
        pair_s = result.cost_s / max(1, len(result.by_process))
        while (
            0 < len(result.by_process) < _MOST_PROCESSES
            and _is_open(result)
            and self._spent_s + pair_s <= problem.budget_s
        ):
            more = yield from self._measure_whole(1)
            if more.speedup is None:
                break
            both = result.by_process + more.by_process
            result = msgspec.structs.replace(
                result, speedup=speedup_over_processes(both), by_process=both
            )
        return self._decided(result)

    def _decided(self, result: Result) -> Decision:
        """What follows from the comparison of what came out on top with the plain loop."""
        if result.speedup is None:
            return self._decision(None, _problem_of(result))
        if result.verdict is not None and not result.verdict.is_passed:
            self._refused.append(result)
            return self._decision(None, "the gate refused what was fastest")
        if result.speedup.low < LEAST_GAIN:
            low, high = result.speedup.low, result.speedup.high
            gain = f"{result.speedup.middle:.2f} [{low:.2f}, {high:.2f}]"
            return self._decision(None, f"x{gain}: not 3 % faster with 95 % confidence")
        return self._decision(result.speedup, "faster than the plain loop, and still right")

    def _measure_whole(self, num_processes: int) -> _Moves:
        problem = self._problem
        whole = Candidate(
            name=" + ".join(rung.name for rung in self._ladder.rungs[1:]),
            axis="final",
            changes=self._ladder.changes,
            why="all of it together",
        )
        result = yield Trial(
            stage="final",
            candidate=whole,
            incumbent=None,
            changes=self._ladder.changes,
            num_processes=num_processes,
            effort=problem.final_effort,
        )
        self._spent_s += result.cost_s
        return result

    def _decision(self, speedup: Interval | None, why: str) -> Decision:
        decision = Decision(
            changes=self._ladder.changes,
            is_plain=speedup is None,
            rungs=tuple(self._ladder.rungs),
            lost=tuple(self._lost),
            refused=tuple(self._refused),
            skipped=tuple(self._skipped),
            speedup=speedup,
            why=why,
            search_s=self._spent_s,
        )
        return priced(decision, self._spent_s, self._problem.batch_size)


def priced(decision: Decision, search_s: float, batch_size: int) -> Decision:
    """The decision with its price, and after how many steps it has gained that.

    Args:
        decision: what was decided.
        search_s: what it took, with all that comes before the first trial and after the last one.
        batch_size: samples of a step.
    """
    speedup, steps = decision.speedup, None
    if speedup is not None and speedup.middle > 1.0:
        plain_step_s = batch_size / decision.rungs[0].samples_per_s
        steps = round(search_s / (plain_step_s * (1.0 - 1.0 / speedup.middle))) + 1
    return msgspec.structs.replace(decision, search_s=search_s, pays_back_after_steps=steps)


def is_slow(step_s: float, limit_s: float) -> bool:
    """Whether so few updates fit into a measurement of that length that fewer must do."""
    return step_s > _SLOW_SHARE * limit_s


def is_faster(result: Result) -> bool:
    """Whether the candidate of a trial was faster than its incumbent, beyond doubt."""
    gain = result.speedup
    return gain is not None and gain.low > 1.0 and gain.middle >= _LEAST_RUNG


def _is_open(result: Result) -> bool:
    gain = result.speedup
    return gain is not None and gain.low < LEAST_GAIN < gain.high


def _is_out_of_memory(result: Result) -> bool:
    return result.problem is not None and result.problem.rule == "out-of-memory"


def _is_unclear(result: Result) -> bool:
    gain = result.speedup
    return gain is not None and gain.low <= 1.0 and gain.middle >= _LEAST_RUNG


def _gain(result: Result) -> float:
    return result.speedup.middle if result.speedup is not None else 0.0


def _problem_of(result: Result) -> str:
    return result.problem.problem if result.problem is not None else "it could not be measured"
