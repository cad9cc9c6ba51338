"""What `flatout doctor --fix` can do on this machine, and what it has brought."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from flatout.nouns.finding import Finding, Fix
from flatout.nouns.plan import Plan, Safety


class Repair(msgspec.Struct, frozen=True, kw_only=True):
    """A plan, and the findings that it is for.

    text: what it does, in a line. safety: of the fix; one cause of several that fit asks first.
    """

    rules: tuple[str, ...]
    text: str
    safety: Safety
    plan: Plan


class ByHand(msgspec.Struct, frozen=True, kw_only=True):
    """A fix that a person must carry out, because no plan holds it."""

    rule: str
    fix: Fix


class Mended(msgspec.Struct, frozen=True, kw_only=True):
    """Rules of findings before and after: which are gone, are still there, or have come."""

    gone: tuple[str, ...]
    remaining: tuple[str, ...]
    new: tuple[str, ...]


def repairs(findings: Sequence[Finding]) -> tuple[Repair, ...]:
    """One repair for each finding that has one: the safest of its plans. Restarts come last.

    What is a note is left as it is. One plan for several findings is carried out once.
    """
    found: list[Repair] = []
    for finding in findings:
        fix = _best(finding)
        if fix is None or fix.plan is None or finding.severity == "note":
            continue
        same = next((one for one in found if one.plan.steps == fix.plan.steps), None)
        if same is None:
            found.append(
                Repair(rules=(finding.rule,), text=fix.text, safety=fix.safety, plan=fix.plan)
            )
        else:
            rules = (*same.rules, finding.rule)
            found[found.index(same)] = msgspec.structs.replace(same, rules=rules)
    return tuple(sorted(found, key=_restarts))


def by_hand(findings: Sequence[Finding]) -> tuple[ByHand, ...]:
    """The fixes of findings for which there is no plan."""
    return tuple(
        ByHand(rule=finding.rule, fix=fix)
        for finding in findings
        if _best(finding) is None and finding.severity != "note"
        for fix in finding.fixes
    )


def mended(before: Sequence[Finding], after: Sequence[Finding]) -> Mended:
    """What has changed between two diagnoses of one machine."""
    old, new = [one.rule for one in before], [one.rule for one in after]
    return Mended(
        gone=tuple(rule for rule in old if rule not in new),
        remaining=tuple(rule for rule in old if rule in new),
        new=tuple(rule for rule in new if rule not in old),
    )


def _best(finding: Finding) -> Fix | None:
    planned = [fix for fix in finding.fixes if fix.plan is not None]
    return next((fix for fix in planned if fix.safety == "safe"), next(iter(planned), None))


def _restarts(repair: Repair) -> bool:
    return any(step.restarts is not None for step in repair.plan.steps)
