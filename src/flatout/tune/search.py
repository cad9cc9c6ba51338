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
    Result,
    Skip,
    Trial,
)  # fmt: skip
from flatout.tune.candidates import jump
from flatout.tune.compiled_trials import compiled_moves
from flatout.tune.ladder import Ladder
from flatout.tune.problem import Problem, plain_rung, unmeasured
from flatout.tune.statistics import speedup_over_processes

# What a recipe must gain, with 95 % confidence, to be worth being another than the plain one.
LEAST_GAIN = 1.03

# A rung may be smaller: several of them together can make up the gain.
_LEAST_RUNG = 1.005

# How many pairs of fresh processes decide at most, where the first ones leave it open. Each
# further look has its own 5 % chance of an error: of what gains exactly 3 %, up to five pairs take
# 5 % for more, and up to nine 8 % (simulated, with 3 % between pairs).
_MOST_PROCESSES = 5

# A search that has no time for this many trials before the last one makes one jump instead.
_FEWEST_TRIALS = 4

# Axes that decide about each other: bf16 may win only where the layout suits it.
_TOGETHER = (
    frozenset({"precision", "memory format"}),
    frozenset({"precision", "threads"}),
    frozenset({"precision", "capture"}),
)


def next_move(problem: Problem, history: Sequence[Result]) -> Trial | Decision:
    """What to measure next, or how the search ends.

    Args:
        problem: what is to be decided.
        history: the results of all trials asked for so far, in their order.
    """
    moves = _moves(problem)
    try:
        move = next(moves)
        for result in history:
            move = moves.send(result)
    except StopIteration as end:
        decision: Decision = end.value
        return decision
    return move


def _moves(problem: Problem) -> Generator[Trial, Result, Decision]:
    """Every trial in turn; the decision is what is returned at the end."""
    decision = problem.decided or (yield from _Search(problem).moves())
    if decision.has_measured:
        # Last, for it takes longer than all else together; and on top of what is known by then.
        decision = yield from compiled_moves(problem, decision)
        decision = priced(decision, decision.search_s, problem.batch_size)
    return decision


# A part of a search: asks for trials, is sent their results.
_Moves = Generator[Trial, Result, Any]


class _Search:
    """A search under way among what need not be compiled; it is begun anew and replayed whenever
    something is asked of it.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._candidates = [one for one in problem.candidates if not one.is_compiled]
        self._ladder = Ladder()
        self._lost: list[Result] = []
        self._refused: list[Result] = []
        self._skipped = list(problem.skipped)
        self._spent_s = 0.0
        # How much longer than was thought a pair of fresh processes takes, as far as was seen.
        self._pair_factor = 1.0

    def moves(self) -> Generator[Trial, Result, Decision]:
        """Every trial in turn; the decision is what is returned at the end."""
        problem = self._problem
        if problem.is_bound and problem.budget_s < problem.trial_s:
            return unmeasured(problem)
        together = jump(self._candidates)
        if problem.num_trials < _FEWEST_TRIALS:
            alone: Decision = yield from self._jump_alone(together)
            return alone
        base = yield from self._try_base()
        if base.speedup is None:
            return self._decision(None, _problem_of(base))
        if together is not None and problem.num_trials < len(self._candidates):
            yield from self._try_axis([together])
        for axis in dict.fromkeys(candidate.axis for candidate in self._candidates):
            yield from self._try_axis([c for c in self._candidates if c.axis == axis])
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
            for other in self._candidates
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
        self._ladder.begin(plain_rung(self._problem, result.incumbent_samples_per_s))

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
        kept_s = problem.final_s * self._pair_factor
        if self._spent_s + cost_s + kept_s > problem.budget_s:
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
        if is_alone:
            took_s = result.cost_s - result.gate_s
            self._pair_factor = max(self._pair_factor, took_s / cost_s)
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
