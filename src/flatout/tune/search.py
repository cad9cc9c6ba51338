"""The next measurement and the end of a search: a function of the measurements so far.

The search climbs a ladder. It begins with flatout's defaults, compared with the plain loop as a
yardstick; the candidates of each axis are compared with the incumbent, and the fastest that passes
the gate becomes the next rung. What has come out on top is measured against the defaults in fresh
processes: it wins only if it is at least 3 % faster with 95 % confidence, else the defaults stay.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import msgspec

from flatout.schema.tuning import Candidate, Decision, Interval, Result, Skip, Trial  # fmt: skip
from flatout.tune.candidates import jump
from flatout.tune.compiled_trials import compiled_moves
from flatout.tune.ladder import Ladder
from flatout.tune.outcomes import (
    Outcomes,
    is_faster,
    is_late,
    is_out_of_memory,
    is_unclear,
    load_of,
    problem_of,
)
from flatout.tune.problem import (
    MOST_OF_BUDGET,
    Problem,
    out_of_time,
    plain_rung,
    unmeasured,
)
from flatout.tune.statistics import mean_load, product, speedup_over_processes

# Without seconds: the search ends before `--budget` does, so any number would look wrong.
_NO_TIME = "no time left in the search"

# What a recipe must gain, with 95 % confidence, to be worth being another than the defaults.
LEAST_GAIN = 1.03

# How many pairs of fresh processes decide at most, where the first ones leave it open: with nine,
# one that was out of the ordinary no longer decides. What that costs is simulated in
# tests/unit/test_search_noise.py.
_MOST_PROCESSES = 9

# How much longer a candidate is measured at most, where shorter looks leave it open.
_MOST_EFFORT = 16

# Of pairs that nothing disturbed, so many are enough to leave the disturbed ones out.
_ENOUGH_QUIET = 3

# A search that has no time for this many trials before the last one makes one jump instead.
_FEWEST_TRIALS = 4

# Axes that decide about each other: bf16 may win only where the layout suits it.
_TOGETHER = (
    frozenset({"precision", "memory format"}),
    frozenset({"precision", "threads"}),
    frozenset({"precision", "capture"}),
)


def next_move(problem: Problem, history: Sequence[Result]) -> Trial | Decision:
    """The next measurement, or the end of the search.

    Args:
        problem: what to decide.
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
    """A running search among uncompiled candidates; it is restarted and replayed on every query."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        defaults = problem.base.changes.items()
        self._candidates = [
            candidate for candidate in problem.candidates
            if not candidate.is_compiled and not candidate.changes.items() <= defaults
        ]  # fmt: skip
        self._ladder = Ladder()
        self._over_plain: Interval | None = None
        self._so_far = Outcomes(problem.skipped)
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
        base = yield from self._result_of(
            Trial(
                stage="screen", candidate=problem.base, incumbent=None,
                changes=dict(problem.base.changes),
            )
        )  # fmt: skip
        self._ladder.begin(plain_rung(problem, base.incumbent_samples_per_s))
        if base.speedup is None:
            return self._stays(problem_of(base), is_decided=False)
        self._over_plain = base.speedup
        self._ladder.climb(base)
        if together is not None and problem.num_trials < len(self._candidates):
            yield from self._try_axis([together])
        for axis in dict.fromkeys(candidate.axis for candidate in self._candidates):
            yield from self._try_axis([c for c in self._candidates if c.axis == axis])
        yield from self._try_losers_again()
        decision: Decision = yield from self._finish()
        return decision

    def _result_of(self, trial: Trial) -> _Moves:
        result = yield trial
        self._so_far.results.append(result)
        return result

    def _jump_alone(self, together: Candidate | None) -> _Moves:
        """One comparison, of what usually helps with the defaults: no time for more."""
        problem = self._problem
        tried = dict(together.changes if together is not None else {}).items()
        self._so_far.skipped += [
            out_of_time(other, _NO_TIME)
            for other in self._candidates
            if not other.changes.items() <= tried
        ]
        self._ladder.begin(plain_rung(problem, None))
        if together is None:
            self._ladder.stand_on(problem.base, self._ladder.rungs[0].samples_per_s)
            return self._stays(self._so_far.doubt or "no other candidate applies here")
        defaults = dict(problem.base.changes)
        result = yield from self._result_of(
            Trial(
                stage="screen", candidate=together, incumbent=defaults,
                changes={**defaults, **together.changes},
            )
        )  # fmt: skip
        speed = result.incumbent_samples_per_s or self._ladder.rungs[0].samples_per_s
        self._ladder.stand_on(problem.base, speed)
        whole = _combined(result, can_start=problem.can_start)
        if whole.speedup is not None and (whole.verdict is None or whole.verdict.is_passed):
            self._ladder.climb(whole)
        return self._decided(whole)

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
            if is_late(result):
                self._so_far.skipped.append(out_of_time(candidate, _NO_TIME))
            elif is_faster(result) and result.verdict and not result.verdict.is_passed:
                self._so_far.refused.append(result)
            elif is_faster(result) and (best is None or _gain(result) > _gain(best)):
                self._so_far.lost += [best] if best is not None else []
                best = result
            else:
                self._so_far.lost.append(result)
        if best is not None:
            self._ladder.climb(best)

    def _try(self, candidate: Candidate, before: dict[str, Any], effort: int) -> _Moves:
        problem = self._problem
        if candidate.needs is not None and not before.get(candidate.needs):
            reason = f"it has no effect without {candidate.needs}"
            self._so_far.skipped.append(
                Skip(name=candidate.name, axis=candidate.axis, reason=reason)
            )
            return None
        is_alone = candidate.is_process_wide and problem.can_start
        cost_s = effort * (problem.process_s if is_alone else problem.trial_s)
        kept_s = min(problem.final_s * self._pair_factor, MOST_OF_BUDGET * problem.budget_s)
        if self._so_far.spent_s + cost_s + kept_s > problem.budget_s:
            self._so_far.skipped.append(out_of_time(candidate, _NO_TIME))
            return None
        result = yield from self._result_of(
            Trial(
                stage="screen",
                candidate=candidate,
                incumbent=before,
                changes={**before, **candidate.changes},
                num_processes=1 if is_alone else 0,
                effort=effort,
            )
        )
        if is_alone:
            took_s = result.cost_s - result.gate_s
            self._pair_factor = max(self._pair_factor, took_s / cost_s)
        return result

    def _try_losers_again(self) -> _Moves:
        """Tries what lost once more: where an axis has been won since that decides about it, and
        where it may well be faster, but too little was measured to say so.

        As long as nothing is faster than the defaults and the budget allows it, what is still
        unclear is measured again, each time with twice the effort: next to other programs, a
        candidate that is twice as fast can take several looks.
        """
        results, effort, num_tried = list(self._so_far.lost), 2, 1
        while num_tried and effort <= _MOST_EFFORT:
            num_tried = 0
            for result in results:
                candidate = result.trial.candidate
                won = self._ladder.won_since(result.trial.incumbent or {})
                is_related = any(frozenset({candidate.axis, axis}) in _TOGETHER for axis in won)
                if self._ladder.has_won(candidate.axis) or not (is_related or is_unclear(result)):
                    continue
                self._so_far.lost.remove(result)
                num_skipped = len(self._so_far.skipped)
                yield from self._try_axis([candidate], effort if is_unclear(result) else 1)
                if len(self._so_far.skipped) > num_skipped:
                    # It was tried, if only once.
                    self._so_far.skipped.pop()
                    self._so_far.lost.append(result)
                else:
                    num_tried += 1
            if self._ladder.changes != self._problem.base.changes:
                return
            effort *= 2
            results = [result for result in self._so_far.lost if _may_be_worth_it(result)]

    def _finish(self) -> _Moves:
        """Measures what has come out on top against the defaults, where nothing is warm."""
        problem = self._problem
        if self._ladder.changes == problem.base.changes:
            return self._stays(self._so_far.doubt or "no candidate was faster")
        # As many pairs as there is time for, by what one has taken so far; one in any case.
        left_s = problem.budget_s - self._so_far.spent_s
        num_affordable = int(left_s / (problem.process_s * self._pair_factor))
        num_pairs = min(problem.num_processes, max(1, num_affordable))
        result = yield from self._measure_whole(num_pairs)
        if num_pairs and is_out_of_memory(result):
            # Two processes share nothing; in one, the second has what the first has freed.
            result = yield from self._measure_whole(0)
        pair_s = result.cost_s / max(1, len(result.by_process))
        while (
            0 < len(result.by_process) < _MOST_PROCESSES
            and _is_open(_combined(result, can_start=True))
            and self._so_far.spent_s + pair_s <= problem.budget_s
        ):
            more = yield from self._measure_whole(1)
            if more.speedup is None:
                break
            result = _joined(result, more)
        return self._decided(_combined(result, can_start=problem.can_start))

    def _decided(self, result: Result) -> Decision:
        """The decision from comparing the best candidate with the defaults."""
        if result.speedup is None:
            self._so_far.lost.append(result)
            return self._stays(problem_of(result), is_decided=False)
        if result.verdict is not None and not result.verdict.is_passed:
            self._so_far.refused.append(result)
            return self._stays(self._so_far.doubt or "the gate rejected the fastest candidate")
        gain = result.speedup
        if gain.low < LEAST_GAIN:
            self._so_far.lost.append(result)
            text = f"x{gain.middle:.2f} [{gain.low:.2f}, {gain.high:.2f}]"
            why = f"{text} over the defaults: not 3 % faster with 95 % confidence"
            doubt = self._so_far.doubt
            if _is_open(result) or doubt is not None:
                return self._stays("; ".join(filter(None, (why, doubt))), is_decided=False)
            return self._stays(why)
        return self._decision(result, "faster than flatout's defaults, and still correct")

    def _measure_whole(self, num_processes: int) -> _Moves:
        problem = self._problem
        rungs = self._ladder.rungs[2:]
        whole = Candidate(
            name=" + ".join(rung.name for rung in rungs),
            axis="final",
            changes={name: value for rung in rungs for name, value in rung.changes.items()},
            why="all winners together",
        )
        result = yield from self._result_of(
            Trial(
                stage="final",
                candidate=whole,
                incumbent=dict(problem.base.changes),
                changes=self._ladder.changes,
                num_processes=num_processes,
                effort=problem.final_effort,
            )
        )
        return result

    def _stays(self, why: str, *, is_decided: bool | None = None) -> Decision:
        """The defaults stay."""
        decided = self._so_far.doubt is None if is_decided is None else is_decided
        return msgspec.structs.replace(
            self._decision(None, why), is_default=True, is_decided=decided,
            changes=dict(self._problem.base.changes), rungs=tuple(self._ladder.rungs[:2]),
        )  # fmt: skip

    def _decision(self, last: Result | None, why: str) -> Decision:
        speedup, over_plain = last.speedup if last is not None else None, self._over_plain
        if speedup is not None and over_plain is not None:
            over_plain = product(over_plain, speedup)
        decision = Decision(
            changes=self._ladder.changes,
            rungs=tuple(self._ladder.rungs),
            lost=tuple(self._so_far.lost),
            refused=tuple(self._so_far.refused),
            skipped=tuple(self._so_far.skipped),
            speedup=speedup,
            over_plain=over_plain,
            why=why,
            search_s=self._so_far.spent_s,
            load=last.load if last is not None else self._so_far.load,
        )
        return priced(decision, self._so_far.spent_s, self._problem.batch_size)


def priced(decision: Decision, search_s: float, batch_size: int) -> Decision:
    """The decision with its price, and after how many steps it has gained that.

    Args:
        decision: what was decided.
        search_s: what it took, with all that comes before the first trial and after the last one.
        batch_size: samples of a step.
    """
    speedup, steps = decision.speedup, None
    if speedup is not None and speedup.middle > 1.0:
        # Without a search the defaults would have trained: they stand on the plain loop.
        step_s = batch_size / decision.rungs[:2][-1].samples_per_s
        steps = round(search_s / (step_s * (1.0 - 1.0 / speedup.middle))) + 1
    return msgspec.structs.replace(decision, search_s=search_s, pays_back_after_steps=steps)


def _joined(result: Result, more: Result) -> Result:
    """A comparison with further pairs of processes."""
    return msgspec.structs.replace(
        result,
        by_process=result.by_process + more.by_process,
        load_by_process=result.load_by_process + more.load_by_process,
        load=load_of((result, more)),
    )


def _combined(result: Result, *, can_start: bool) -> Result:
    """The comparison with one speed-up from all of its processes.

    Pairs that other programs disturbed are left out once there are enough others. Where fresh
    processes could have been asked, but there was no time for them, the only one speaks for itself
    alone; in a notebook it is the one that will train.
    """
    if result.speedup is None:
        return result
    if not result.by_process:
        alone = speedup_over_processes([result.speedup]) if can_start else result.speedup
        return msgspec.structs.replace(result, speedup=alone)
    loads = result.load_by_process or (None,) * len(result.by_process)
    pairs = list(zip(result.by_process, loads, strict=True))
    quiet = [(gain, load) for gain, load in pairs if load is None or not load.is_busy]
    counted = quiet if len(quiet) >= _ENOUGH_QUIET else pairs
    return msgspec.structs.replace(
        result,
        speedup=speedup_over_processes([gain for gain, _ in counted]),
        load=mean_load([(load, 1.0) for _, load in counted]),
    )


def _is_open(result: Result) -> bool:
    gain = result.speedup
    return gain is not None and gain.low < LEAST_GAIN < gain.high


def _may_be_worth_it(result: Result) -> bool:
    """Whether a candidate that lost may gain as much as a recipe must."""
    gain = result.speedup
    return gain is not None and is_unclear(result) and gain.high >= LEAST_GAIN


def _gain(result: Result) -> float:
    return result.speedup.middle if result.speedup is not None else 0.0
