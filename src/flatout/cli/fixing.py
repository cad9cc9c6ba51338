"""`flatout doctor --fix` as a talk: shown, asked, done, read again."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from flatout import consult, mending
from flatout.cli import show, show_doctor, show_fix
from flatout.nouns.doctor_request import DoctorManner, DoctorRequest, check_fixing
from flatout.nouns.journal import StepOutcome
from flatout.nouns.repair import Repair, by_hand, mended, repairs


def fix(request: DoctorRequest, manner: DoctorManner) -> int:
    """Mends what can be mended; gives the exit code."""
    check_fixing(request, manner)
    show_fix.wait_for_program()
    for change in mending.changes():
        if change.status == "broke off":
            told = f"{change.id} ({change.begun.plan.goal}) broke off: flatout undo {change.id}"
            show.print_note(f"warning: {told} puts back what it had begun")
    before = consult.examine(request)
    found, left = repairs(before.diagnosis.findings), by_hand(before.diagnosis.findings)
    if not manner.is_json:
        show_doctor.print_examined(before, is_verbose=manner.is_verbose, is_mending=True)
        show_fix.print_repairs(found, left)
    outcomes = _carry_out(_chosen(found, manner))
    after = consult.examine(request) if outcomes else before
    result = mended(before.diagnosis.findings, after.diagnosis.findings)
    if manner.is_json:
        extra = {"repairs": found, "by_hand": left, "outcomes": outcomes, "mended": result}
        show.print_json({**consult.report(after), **extra})
    elif outcomes:
        show_fix.print_mended(result, list(dict.fromkeys(one.id for one in outcomes if one.id)))
    if found and not outcomes or any(one.how == "failed" for one in outcomes):
        return 1
    return int(manner.fails(after.diagnosis.findings))


def _chosen(found: Sequence[Repair], manner: DoctorManner) -> list[Repair]:
    """What is to be done: what is safe and was agreed to, and of the rest what was said yes to."""
    safe = [one for one in found if one.safety == "safe"]
    asked = [one for one in found if one.safety != "safe"]
    is_asking = not manner.is_sure and not manner.is_json and sys.stdin.isatty()
    if not found:
        show.print_note("there is nothing that flatout can mend itself")
        return []
    if manner.is_dry or not (manner.is_sure or is_asking):
        show.print_note(
            "nothing was changed" + ("" if manner.is_dry else "; --yes does what is safe")
        )
        return []
    if not is_asking:
        for one in asked:
            show.print_note(f"not done: {one.text} (asks first: in a terminal, without --yes)")
        return safe
    names = "; ".join(one.text for one in safe)
    chosen = safe if safe and show.ask(f"Do what is safe ({names})?") else []
    return [*chosen, *(one for one in asked if _is_agreed_to(one))]


def _is_agreed_to(repair: Repair) -> bool:
    for preview in mending.previews(repair.plan):
        show_fix.print_preview(preview)
    return show.ask(f"Do this: {repair.text}?")


def _carry_out(chosen: Sequence[Repair]) -> list[StepOutcome]:
    """Applies plans up to the first step that fails."""
    outcomes: list[StepOutcome] = []
    try:
        for repair in chosen:
            for outcome in mending.apply(repair.plan):
                outcomes.append(outcome)
                show_fix.print_outcome(outcome)
            if any(one.how == "failed" for one in outcomes):
                break
    except KeyboardInterrupt:
        show.print_note("broken off: `flatout undo` puts back what was begun")
        raise
    return outcomes
