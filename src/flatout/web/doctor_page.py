"""Doctor: findings with evidence and fixes; safe fixes are shown as a plan, applied and undone."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
from starlette.datastructures import FormData
from starlette.responses import RedirectResponse, Response

from flatout.doctor.model.fix_plan import FixPlan, repairs
from flatout.errors import UsageError
from flatout.schema.change_journal import Applied
from flatout.schema.finding import Finding
from flatout.schema.plan import Plan
from flatout.schema.plan_rows import step_rows, undo_rows
from flatout.system.changes import api as changes_api
from flatout.system.clock import now_s
from flatout.web.machine_change import ChangeProgress
from flatout.web.page import PageContext, PageRequest, WebPage, section

_NUM_CHANGES = 20
_FIX = "flatout doctor --fix"
_CAN_BE_UNDONE = ("done", "failed", "interrupted")
# A page that was left open, while the machine may have changed.
_OLDEST_PLAN_S = 900.0


def doctor_page(request: PageRequest) -> WebPage:
    """All findings about this machine, and what flatout has changed on it."""
    health = request.context.health.latest()
    examined = health.value
    findings = examined.diagnosis.findings if examined is not None else ()
    plans = repairs(findings)
    return WebPage(
        template="doctor",
        data={
            "is_examined": health.at is not None,
            "examined_at": health.at,
            "examination_problem": health.problem,
            "findings": [_row(finding, plans) for finding in findings],
            "undecided": examined.diagnosis.undecided if examined is not None else (),
            "warnings": examined.warnings if examined is not None else (),
            "change": request.context.changes.latest(),
            "changes": section(_changes),
        },
    )


def plan_page(request: PageRequest) -> WebPage:
    """What a fix would do, step by step, before it is agreed to.

    Raises:
        UsageError: web-plan-gone.
    """
    repair = _repair(request.context, request.query.get("plan", ""))
    return WebPage(
        template="doctor_plan",
        data={
            "plan": _plan_id(repair.plan),
            "text": repair.text,
            "rules": repair.rules,
            "safety": repair.safety,
            "command": _FIX,
            "steps": [
                {"text": step.text, "rows": tuple(step_rows(step))} for step in repair.plan.steps
            ],
        },
    )


def undo_page(request: PageRequest) -> WebPage:
    """What an undo would restore, before it is agreed to.

    When it begins, it also compares folders, such as environments, with what flatout left.

    Raises:
        UsageError: no-such-change.
    """
    applied = changes_api.change_to_undo(request.query.get("change", ""))
    obstacles = section(lambda: changes_api.changed_files_since(applied))
    return WebPage(
        template="doctor_undo",
        data={
            "change": _change(applied),
            "rows": tuple(undo_rows(applied)),
            "obstacles": obstacles,
            "compares_folders": changes_api.compares_folders(applied),
            "command": _undo_command(applied) + (" --force" if obstacles.value else ""),
        },
    )


def begin_fix(context: PageContext, form: FormData) -> Response:
    """Begins a safe fix that the machine's last examination has suggested.

    Raises:
        UsageError: web-plan-gone, web-not-safe, changes-under-way.
    """
    at = context.health.latest().at
    if at is not None and now_s() - at > _OLDEST_PLAN_S:
        raise _plan_gone("the machine was examined too long ago, and is being examined again")
    repair = _repair(context, str(form.get("plan", "")))
    if repair.safety != "safe":
        raise _not_safe(_FIX)
    context.changes.begin(
        ChangeProgress(goal=repair.text),
        lambda: changes_api.apply(repair.plan),
        context.health.forget,
    )
    return RedirectResponse("/doctor", 303)


def begin_undo(context: PageContext, form: FormData) -> Response:
    """Begins to undo a change, unless others have changed the same things since.

    Raises:
        UsageError: no-such-change, web-not-safe, changes-under-way.
    """
    applied = changes_api.change_to_undo(str(form.get("change", "")))
    if applied.begun.plan.safety != "safe":
        raise _not_safe(_undo_command(applied))
    context.changes.begin(
        ChangeProgress(goal=applied.begun.plan.goal, is_undo=True),
        lambda: changes_api.undo(applied),
        context.health.forget,
    )
    return RedirectResponse("/doctor", 303)


def _undo_command(applied: Applied) -> str:
    return f"flatout undo {applied.id}"


def _not_safe(command: str) -> UsageError:
    return UsageError(
        "web-not-safe",
        "a page changes only what is safe to change.",
        because="it needs root, restarts or removes something, or fits one of several causes",
        fix=f"{command}, in a terminal",
    )


def _repair(context: PageContext, plan_id: str) -> FixPlan:
    """A plan of the last examination: a page names it, and never brings one of its own."""
    examined = context.health.latest().value
    findings = examined.diagnosis.findings if examined is not None else ()
    for repair in repairs(findings):
        if _plan_id(repair.plan) == plan_id:
            return repair
    raise _plan_gone("the machine has been examined again since, or the server was started again")


def _plan_gone(because: str) -> UsageError:
    return UsageError(
        "web-plan-gone",
        "there is no such plan.",
        because=because,
        fix="go back to the doctor's page, and choose a fix there",
    )


def _plan_id(plan: Plan) -> str:
    return hashlib.sha256(msgspec.json.encode(plan)).hexdigest()[:16]


def _row(finding: Finding, plans: tuple[FixPlan, ...]) -> dict[str, Any]:
    """A finding, and the plan for it, if there is one."""
    steps = [fix.plan.steps for fix in finding.fixes if fix.plan is not None]
    repair = next(
        (one for one in plans if finding.rule in one.rules and one.plan.steps in steps), None
    )
    return {
        "finding": finding,
        "plan": _plan_id(repair.plan) if repair is not None else None,
        "safety": repair.safety if repair is not None else "manual",
    }


def _changes() -> list[dict[str, Any]]:
    return [_change(applied) for applied in changes_api.changes()[:_NUM_CHANGES]]


def _change(applied: Applied) -> dict[str, Any]:
    plan = applied.begun.plan
    return {
        "id": applied.id,
        "at": applied.begun.at,
        "goal": plan.goal,
        "status": applied.status,
        "is_safe": plan.safety == "safe",
        "can_be_undone": applied.status in _CAN_BE_UNDONE,
    }
