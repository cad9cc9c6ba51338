"""The end of a search: what is compiled, tried on top of what was decided without it."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import msgspec

from flatout.schema.tuning import Candidate, Decision, Result, Skip, Trial
from flatout.schema.units import seconds_text
from flatout.tune.compiling import AXIS, trial_s, with_best, with_payback
from flatout.tune.problem import Problem, out_of_time

_TrialResults = tuple[list[Result], list[Skip]]


def compiled_moves(problem: Problem, decision: Decision) -> Generator[Trial, Result, Decision]:
    """Tries what is compiled, each in a fresh process, as far as there is time for it.

    Args:
        problem: what to decide.
        decision: what was decided without it; its `search_s` is what that took.

    Returns:
        The decision, with the best of them on top if one has won.
    """
    results, skipped = yield from _results(problem, decision)
    refused = [
        result for result in results if result.verdict is not None and not result.verdict.is_passed
    ]
    lost = [result for result in results if result not in refused]
    whole = msgspec.structs.replace(
        decision,
        lost=(*decision.lost, *lost),
        refused=(*decision.refused, *refused),
        skipped=(*decision.skipped, *skipped),
        search_s=decision.search_s + sum(result.cost_s for result in results),
    )
    return with_best(whole, problem.batch_size)


def left_to_compile(problem: Problem, decision: Decision) -> Problem:
    """Parts to compile alone, on top of an earlier decision without a result for them.

    Args:
        problem: of the run to tune now.
        decision: of a search for another run, before anything was compiled on top of it.
    """
    tried = {result.trial.candidate.name for result in (*decision.lost, *decision.refused)}
    candidates = [
        candidate
        for candidate in problem.candidates
        if candidate.is_compiled and candidate.name not in tried
    ]
    skipped = [skip for skip in decision.skipped if skip.axis != AXIS]
    skipped += [skip for skip in problem.skipped if skip.axis == AXIS]
    decided = msgspec.structs.replace(decision, skipped=tuple(skipped), search_s=0.0)
    return msgspec.structs.replace(problem, candidates=tuple(candidates), decided=decided)


def _results(problem: Problem, decision: Decision) -> Generator[Trial, Result, _TrialResults]:
    """The result of each candidate, and the skipped ones.

    Where the step is made in CUDA graphs, what is compiled becomes a part of them; what cannot, is
    tried without.
    """
    needed_s = trial_s(problem.profile)
    before = decision.changes
    new_results: list[Result] = []
    skipped: list[Skip] = []
    waiting = deque(candidate for candidate in problem.candidates if candidate.is_compiled)
    while waiting:
        candidate = waiting.popleft()
        left_s = problem.budget_s - decision.search_s - sum(result.cost_s for result in new_results)
        results = (*decision.lost, *new_results)
        reason = _why_not_worthwhile(candidate, problem.base.changes, before, results)
        if reason is None and needed_s > left_s:
            skipped.append(out_of_time(candidate, _no_time(problem.budget_s, needed_s)))
            continue
        if reason is not None:
            skipped.append(Skip(name=candidate.name, axis=candidate.axis, reason=reason))
            continue
        if before.get("capture") == "step" and candidate.changes["compiled"] != "loss":
            candidate = _without_graphs(candidate)
        result = yield Trial(
            stage="screen",
            candidate=candidate,
            incumbent=before,
            changes={**before, **candidate.changes},
            deadline_s=left_s,
        )
        new_results.append(with_payback(result, problem.batch_size, problem.num_steps))
        if _rule(result) == "step-not-captured" and "capture" not in candidate.changes:
            # Uncompiled it could be recorded; compiled it may still be the faster one without.
            alone = _without_graphs(candidate)
            name = f"{candidate.name}, without a CUDA graph"
            waiting.appendleft(msgspec.structs.replace(alone, name=name))
    return new_results, skipped


def _without_graphs(candidate: Candidate) -> Candidate:
    alone = {**candidate.changes, "capture": "off", "steps_per_launch": 1}
    return msgspec.structs.replace(candidate, changes=alone)


def _why_not_worthwhile(
    candidate: Candidate,
    base: Mapping[str, Any],
    before: Mapping[str, Any],
    results: Sequence[Result],
) -> str | None:
    """The reason why nothing is left to try here; None if something is.

    Args:
        candidate: something compiled.
        base: recipe fields of flatout's own loop, with those that the user has set.
        before: of what was decided.
        results: what came of others.
    """
    capture = candidate.changes.get("capture")
    is_bare = capture == "off" or candidate.changes["compiled"] != "loss"
    if is_bare and base.get("capture") == "step":
        return "you have set capture, and this cannot run in a CUDA graph"
    if capture != "step":
        return None
    if before.get("capture") == "step":
        return "the step is already in a CUDA graph, and compiling is tried within it"
    if any(_rule(result) == "compiling-failed" for result in results):
        return "compiling failed without a CUDA graph, too"
    return None


def _rule(result: Result) -> str | None:
    return result.problem.rule if result.problem is not None else None


def _no_time(budget_s: float, needed_s: float) -> str:
    return (
        f"no time left in a search of {budget_s:.0f} s: compiling and the gate take about "
        f"{seconds_text(needed_s)}; give more time with --budget"
    )
