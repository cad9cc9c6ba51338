"""The possible fixes of `flatout doctor --fix` on this machine, and their result."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from flatout.schema.finding import Finding, Fix
from flatout.schema.plan import Plan, Safety


class FixPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A plan, and the findings that it is for.

    text: what it does, in one line. safety: of the fix; `ask` if another cause fits as well.
    """

    rules: tuple[str, ...]
    text: str
    safety: Safety
    plan: Plan


class ByHand(msgspec.Struct, frozen=True, kw_only=True):
    """A fix that the user must apply, because flatout has no plan for it."""

    rule: str
    fix: Fix


class FixResult(msgspec.Struct, frozen=True, kw_only=True):
    """Rules of the findings before and after: gone, remaining and new ones."""

    gone: tuple[str, ...]
    remaining: tuple[str, ...]
    new: tuple[str, ...]


def repairs(findings: Sequence[Finding]) -> tuple[FixPlan, ...]:
    """One repair per finding that has one: the safest of its plans. Restarts come last.

    Notes are not fixed. A plan shared by several findings is applied once.
    """
    plans: list[FixPlan] = []
    for finding in findings:
        fix = _best(finding)
        if fix is None or fix.plan is None or finding.severity == "note":
            continue
        same = next((plan for plan in plans if plan.plan.steps == fix.plan.steps), None)
        if same is None:
            plans.append(
                FixPlan(rules=(finding.rule,), text=fix.text, safety=fix.safety, plan=fix.plan)
            )
        else:
            rules = (*same.rules, finding.rule)
            plans[plans.index(same)] = msgspec.structs.replace(same, rules=rules)
    return tuple(sorted(plans, key=_restarts))


def by_hand(findings: Sequence[Finding]) -> tuple[ByHand, ...]:
    """The fixes of findings without a plan."""
    return tuple(
        ByHand(rule=finding.rule, fix=fix)
        for finding in findings
        if _best(finding) is None and finding.severity != "note"
        for fix in finding.fixes
    )


def mended(before: Sequence[Finding], after: Sequence[Finding]) -> FixResult:
    """The difference between two diagnoses of one machine."""
    old, new = [finding.rule for finding in before], [finding.rule for finding in after]
    return FixResult(
        gone=tuple(rule for rule in old if rule not in new),
        remaining=tuple(rule for rule in old if rule in new),
        new=tuple(rule for rule in new if rule not in old),
    )


def _best(finding: Finding) -> Fix | None:
    planned = [fix for fix in finding.fixes if fix.plan is not None]
    return next((fix for fix in planned if fix.safety == "safe"), next(iter(planned), None))


def _restarts(repair: FixPlan) -> bool:
    return any(step.restarts is not None for step in repair.plan.steps)
