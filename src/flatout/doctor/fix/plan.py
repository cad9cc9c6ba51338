"""Fixes as plans for this machine: steps that flatout can run, if it knows all of them.

A plan is for an examined machine, never for a text, which may come from anywhere.
"""

from __future__ import annotations

import msgspec

from flatout.doctor.fix.commands import CommandFacts, edit_step, steps_of
from flatout.doctor.model.diagnosis import Diagnosis
from flatout.schema.finding import WSLCONFIG, Finding, Fix
from flatout.schema.machine import Machine
from flatout.schema.plan import Block, Edit, Place, Plan, PlanStep


def with_plans(diagnosis: Diagnosis, machine: Machine, user: str) -> Diagnosis:
    """The same findings, with a plan in each fix that has one for this machine.

    Args:
        diagnosis: of this machine.
        machine: its facts.
        user: name of the logged-in user.
    """
    findings = tuple(
        msgspec.structs.replace(
            finding,
            fixes=tuple(_planned(finding, fix, machine, user) for fix in finding.fixes),
        )
        for finding in diagnosis.findings
    )
    return msgspec.structs.replace(diagnosis, findings=findings)


def _planned(finding: Finding, fix: Fix, machine: Machine, user: str) -> Fix:
    if fix.plan is not None or fix.safety == "manual" or not _can_reach(fix.where, machine):
        return fix
    steps = _steps(CommandFacts(machine=machine, fix=fix, user=user))
    if not steps:
        return fix
    plan = Plan(goal=fix.text, steps=steps)
    # If other causes fit as well, the fix is not applied without asking.
    safety = "ask" if finding.certainty == "possible" else plan.safety
    return msgspec.structs.replace(fix, plan=plan, safety=safety)


def _steps(facts: CommandFacts) -> tuple[PlanStep, ...]:
    """All steps of a fix; none if flatout cannot run one of its edits or commands here."""
    steps: list[PlanStep] = []
    for edit in facts.fix.edits:
        here = _edit_here(edit, facts.machine)
        if here is None:
            return ()
        steps.append(edit_step(here, facts))
    for command in facts.fix.commands:
        more = steps_of(command, facts)
        if more is None:
            return ()
        steps += more
    if len({step.text for step in steps}) < len(steps):
        return ()  # Alternatives; nothing here decides between them.
    return tuple(steps)


def _edit_here(edit: Edit | Block, machine: Machine) -> Edit | Block | None:
    """The edit with the file's path on this system."""
    if edit.file == "/etc/wsl.conf" and machine.host.wsl is None:
        return None
    if edit.file != WSLCONFIG:
        return edit
    profile = machine.windows.profile if machine.windows else None
    if profile is None:
        return None
    slash = "\\" if machine.host.os == "windows" else "/"
    return msgspec.structs.replace(edit, file=f"{profile}{slash}.wslconfig")


def _can_reach(system: Place, machine: Machine) -> bool:
    host = machine.host
    is_windows_near = host.wsl is not None or host.os == "windows"
    return {
        "here": True,
        "wsl": host.wsl is not None,
        "linux": host.os == "linux",
        "windows": is_windows_near,
        "powershell": is_windows_near,
        "host": host.os == "linux" and host.container is None,
        "container": host.container is not None,
    }[system]
