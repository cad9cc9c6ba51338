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

from flatout.nouns.tuning import Candidate, Decision, Interval, Profile, Result, Skip, Trial
from flatout.tune.ladder import Ladder

# What a recipe must gain, with 95 % confidence, to be worth being another than the plain one.
LEAST_GAIN = 1.03

# A rung may be smaller: several of them together can make up the gain.
_LEAST_RUNG = 1.005

# How many fresh processes decide, and how many more where they leave it open.
NUM_PROCESSES = 3
_MORE_PROCESSES = 2

# Measuring in a process takes about as many updates as this: warm-up and pairs of blocks.
_UPDATES_PER_TRIAL = 16
_LEAST_TRIAL_S = 0.5

# Axes that decide about each other: bf16 may win only where the layout suits it.
_TOGETHER = (frozenset({"precision", "memory format"}), frozenset({"precision", "threads"}))


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be decided.

    base: flatout's loop at a plain loop's settings. candidates: in the order in which to try.
    budget_s: what all trials together may take. num_processes: fresh ones that decide; 0 decides
    in the process that is there: in a notebook, whose experiment exists only there, or where the
    budget is too short for others.
    """

    base: Candidate
    candidates: tuple[Candidate, ...]
    skipped: tuple[Skip, ...]
    profile: Profile
    budget_s: float
    batch_size: int
    num_processes: int

    @property
    def process_s(self) -> float:
        """About what a measurement in a fresh process takes."""
        return self.profile.start_s + self.trial_s

    @property
    def trial_s(self) -> float:
        """About what a measurement in a process that is there takes."""
        return max(_LEAST_TRIAL_S, _UPDATES_PER_TRIAL * self.profile.step_s)

    @property
    def final_s(self) -> float:
        """About what the measurement takes that decides: it is kept back from the rest."""
        return self.num_processes * self.process_s if self.num_processes else self.trial_s


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
        base = yield from self._try_base()
        if base.speedup is None:
            return self._decision(None, _problem_of(base))
        for axis in dict.fromkeys(candidate.axis for candidate in self._problem.candidates):
            yield from self._try_axis([c for c in self._problem.candidates if c.axis == axis])
        yield from self._try_losers_again()
        decision: Decision = yield from self._finish()
        return decision

    def _try_base(self) -> _Moves:
        base, problem = self._problem.base, self._problem
        result = yield Trial(
            stage="screen", candidate=base, incumbent=None, changes=dict(base.changes)
        )
        self._spent_s += result.cost_s
        measured = result.incumbent_samples_per_s
        self._ladder.begin(measured or problem.batch_size / max(problem.profile.step_s, 1e-9))
        if result.speedup is not None:
            self._ladder.climb(result)
        return result

    def _try_axis(self, candidates: list[Candidate]) -> _Moves:
        """Tries the alternatives of one axis; the fastest correct one becomes the next rung."""
        before = self._ladder.changes
        best: Result | None = None
        for candidate in candidates:
            if candidate.changes.items() <= before.items():
                # It has come along with something else.
                continue
            result = yield from self._try(candidate, before)
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

    def _try(self, candidate: Candidate, before: dict[str, Any]) -> _Moves:
        problem = self._problem
        is_alone = candidate.is_process_wide and problem.num_processes > 0
        cost_s = problem.process_s if is_alone else problem.trial_s
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
        )
        self._spent_s += result.cost_s
        return result

    def _try_losers_again(self) -> _Moves:
        """Tries what lost once more, where an axis has been won since that decides about it."""
        for result in list(self._lost):
            candidate = result.trial.candidate
            won = self._ladder.won_since(result.trial.incumbent or {})
            is_related = any(frozenset({candidate.axis, axis}) in _TOGETHER for axis in won)
            if is_related and not self._ladder.has_won(candidate.axis):
                self._lost.remove(result)
                yield from self._try_axis([candidate])

    def _finish(self) -> _Moves:
        """Measures what has come out on top against the plain loop, where nothing is warm."""
        problem = self._problem
        num_processes = problem.num_processes
        result = yield from self._measure_whole(num_processes)
        left_s = problem.budget_s - self._spent_s
        if num_processes and _is_open(result) and left_s > _MORE_PROCESSES * problem.process_s:
            result = yield from self._measure_whole(num_processes + _MORE_PROCESSES)
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
        )
        self._spent_s += result.cost_s
        return result

    def _decision(self, speedup: Interval | None, why: str) -> Decision:
        rungs = self._ladder.rungs
        return Decision(
            changes=self._ladder.changes,
            is_plain=speedup is None,
            rungs=tuple(rungs),
            lost=tuple(self._lost),
            refused=tuple(self._refused),
            skipped=tuple(self._skipped),
            speedup=speedup,
            why=why,
            search_s=self._spent_s,
            pays_back_after_steps=_payback(
                speedup, self._spent_s, self._problem.batch_size / rungs[0].samples_per_s
            ),
        )


def is_faster(result: Result) -> bool:
    """Whether the candidate of a trial was faster than its incumbent, beyond doubt."""
    gain = result.speedup
    return gain is not None and gain.low > 1.0 and gain.middle >= _LEAST_RUNG


def _is_open(result: Result) -> bool:
    gain = result.speedup
    return gain is not None and gain.low < LEAST_GAIN < gain.high


def _gain(result: Result) -> float:
    return result.speedup.middle if result.speedup is not None else 0.0


def _payback(speedup: Interval | None, search_s: float, plain_step_s: float) -> int | None:
    """After how many steps the search has gained what it took."""
    if speedup is None or speedup.middle <= 1.0:
        return None
    return round(search_s / (plain_step_s * (1.0 - 1.0 / speedup.middle))) + 1


def _problem_of(result: Result) -> str:
    return result.problem.problem if result.problem is not None else "it could not be measured"
