"""`flatout doctor --fix` as a dialog: show, ask, apply, check again."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from flatout.cli.render import show, show_doctor, show_fix
from flatout.doctor import api as doctor_api
from flatout.doctor.model.doctor_request import DoctorOptions, DoctorRequest, check_fixing
from flatout.doctor.model.fix_plan import FixPlan, by_hand, mended, repairs
from flatout.schema.change_journal import StepOutcome
from flatout.system.changes import api as changes_api


def fix(request: DoctorRequest, manner: DoctorOptions) -> int:
    """Fixes what can be fixed; returns the exit code."""
    check_fixing(request, manner)
    show_fix.wait_for_program()
    for change in changes_api.changes():
        if change.status == "interrupted":
            interrupted = (
                f"{change.id} ({change.begun.plan.goal}) was interrupted: flatout undo {change.id}"
            )
            show.print_note(f"warning: {interrupted} reverts what it had changed")
    before = doctor_api.examine(request)
    plans, left = repairs(before.diagnosis.findings), by_hand(before.diagnosis.findings)
    if not manner.is_json:
        show_doctor.print_examined(before, is_verbose=manner.is_verbose, is_mending=True)
        show_fix.print_repairs(plans, left)
    outcomes = _carry_out(_chosen(plans, manner))
    after = doctor_api.examine(request) if outcomes else before
    result = mended(before.diagnosis.findings, after.diagnosis.findings)
    if manner.is_json:
        extra = {"repairs": plans, "by_hand": left, "outcomes": outcomes, "result": result}
        show.print_json({**doctor_api.report(after), **extra})
    elif outcomes:
        show_fix.print_fix_result(
            result, list(dict.fromkeys(outcome.id for outcome in outcomes if outcome.id))
        )
    if plans and not outcomes or any(outcome.how == "failed" for outcome in outcomes):
        return 1
    return int(manner.fails(after.diagnosis.findings))


def _chosen(plans: Sequence[FixPlan], manner: DoctorOptions) -> list[FixPlan]:
    """The fixes to apply: safe ones if agreed to, and each of the others that was agreed to."""
    safe = [plan for plan in plans if plan.safety == "safe"]
    unsafe = [plan for plan in plans if plan.safety != "safe"]
    is_interactive = not manner.is_sure and not manner.is_json and sys.stdin.isatty()
    if not plans:
        show.print_note("there is nothing that flatout can fix by itself")
        return []
    if manner.is_dry or not (manner.is_sure or is_interactive):
        show.print_note(
            "nothing was changed" + ("" if manner.is_dry else "; --yes applies safe fixes")
        )
        return []
    if not is_interactive:
        for plan in unsafe:
            show.print_note(
                f"skipped: {plan.text} (needs confirmation: use a terminal, without --yes)"
            )
        return safe
    names = "; ".join(plan.text for plan in safe)
    chosen = safe if safe and show.confirm(f"Apply safe fixes ({names})?") else []
    return [*chosen, *(plan for plan in unsafe if _is_agreed_to(plan))]


def _is_agreed_to(repair: FixPlan) -> bool:
    for preview in changes_api.previews(repair.plan):
        show_fix.print_preview(preview)
    return show.confirm(f"Apply this fix: {repair.text}?")


def _carry_out(chosen: Sequence[FixPlan]) -> list[StepOutcome]:
    """Applies plans up to the first step that fails."""
    outcomes: list[StepOutcome] = []
    try:
        for repair in chosen:
            for outcome in changes_api.apply(repair.plan):
                outcomes.append(outcome)
                show_fix.print_outcome(outcome)
            if any(outcome.how == "failed" for outcome in outcomes):
                break
    except KeyboardInterrupt:
        show.print_note("interrupted: `flatout undo` reverts what was changed")
        raise
    return outcomes
