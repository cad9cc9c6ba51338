"""Fixes as plans for this machine: steps that flatout can carry out, where all of them are certain.

A plan is for a machine that was read, never for a text, which may come from anywhere.
"""

from __future__ import annotations

import msgspec

from flatout.doctor.commands import Facts, edit_step, steps_of
from flatout.nouns.diagnosis import Diagnosis
from flatout.nouns.finding import WSLCONFIG, Finding, Fix
from flatout.nouns.machine import Machine
from flatout.nouns.plan import Block, Edit, Place, Plan, Step


def with_plans(diagnosis: Diagnosis, machine: Machine, user: str) -> Diagnosis:
    """The same findings, whose fixes hold a plan where there is one for this machine.

    Args:
        diagnosis: of this machine.
        machine: all that was read of it.
        user: who is logged in.
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
    steps = _steps(Facts(machine=machine, fix=fix, user=user))
    if not steps:
        return fix
    plan = Plan(goal=fix.text, steps=steps)
    # One cause of several that fit is not mended without asking.
    safety = "ask" if finding.certainty == "possible" else plan.safety
    return msgspec.structs.replace(fix, plan=plan, safety=safety)


def _steps(facts: Facts) -> tuple[Step, ...]:
    """All steps of a fix; none where one of its edits or commands is not certain here."""
    steps: list[Step] = []
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
        return ()  # Alternatives, of which nothing here tells which is right.
    return tuple(steps)


def _edit_here(edit: Edit | Block, machine: Machine) -> Edit | Block | None:
    """The edit with the file as this side spells it."""
    if edit.file == "/etc/wsl.conf" and machine.host.wsl is None:
        return None
    if edit.file != WSLCONFIG:
        return edit
    profile = machine.windows.profile if machine.windows else None
    if profile is None:
        return None
    slash = "\\" if machine.host.os == "windows" else "/"
    return msgspec.structs.replace(edit, file=f"{profile}{slash}.wslconfig")


def _can_reach(place: Place, machine: Machine) -> bool:
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
    }[place]
