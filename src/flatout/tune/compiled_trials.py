"""The end of a search: what is compiled, tried on top of what was decided without it."""

from __future__ import annotations

from collections.abc import Generator

import msgspec

from flatout.nouns.tuning import Candidate, Decision, Result, Skip, Trial
from flatout.nouns.units import seconds_text
from flatout.tune.compiling import trial_s, with_best, with_payback
from flatout.tune.problem import Problem


def compiled_moves(problem: Problem, decision: Decision) -> Generator[Trial, Result, Decision]:
    """Tries what is compiled, each in a fresh process, as far as there is time for it.

    Args:
        problem: what is to be decided.
        decision: what was decided without it; its `search_s` is what that took.

    Returns:
        The decision, with the best of them on top if one has won.
    """
    needed_s = trial_s(problem.profile)
    # Of a ladder that has led nowhere, nothing is taken over but the loop itself.
    before = problem.base.changes if decision.is_plain else decision.changes
    spent_s = decision.search_s
    found: list[Result] = []
    skipped: list[Skip] = []
    for candidate in problem.candidates:
        if not candidate.is_compiled:
            continue
        left_s = problem.budget_s - spent_s
        if needed_s > left_s:
            skipped.append(_without_time(candidate, problem.budget_s, needed_s))
            continue
        if before.get("capture") == "step":
            # It is one of the two; what is compiled may still be the faster one.
            alone = {**candidate.changes, "capture": "off", "steps_per_launch": 1}
            candidate = msgspec.structs.replace(candidate, changes=alone)
        result = yield Trial(
            stage="screen",
            candidate=candidate,
            incumbent=None if decision.is_plain else decision.changes,
            changes={**before, **candidate.changes},
            deadline_s=left_s,
        )
        spent_s += result.cost_s
        found.append(with_payback(result, problem.batch_size, problem.num_steps))
    refused = [one for one in found if one.verdict is not None and not one.verdict.is_passed]
    lost = [one for one in found if one not in refused]
    whole = msgspec.structs.replace(
        decision,
        lost=(*decision.lost, *lost),
        refused=(*decision.refused, *refused),
        skipped=(*decision.skipped, *skipped),
        search_s=spent_s,
    )
    return with_best(whole)


def _without_time(candidate: Candidate, budget_s: float, needed_s: float) -> Skip:
    reason = (
        f"no time left in a search of {budget_s:.0f} s: compiling and the gate take about "
        f"{seconds_text(needed_s)}; a larger --budget gives it"
    )
    return Skip(name=candidate.name, axis=candidate.axis, reason=reason)
