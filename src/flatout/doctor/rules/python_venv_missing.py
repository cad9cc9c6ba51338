"""This Python lacks pip or venv, which Debian and Ubuntu package separately.

**Checks.** venv without ensurepip, and a missing pip.

**Why it matters.** Debian and Ubuntu split venv, ensurepip and pip from python3 into separate
packages.

**Example.** `The virtual environment was not created successfully because ensurepip is not
available.`

**Fix.** `sudo apt install python3-venv python3-pip`; asks first. uv needs neither.

**Source.** packages.debian.org/stable/python3-venv; docs.astral.sh/uv/pip/environments/.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """venv without ensurepip, and a missing pip."""
    if not case.sees("ensurepip-missing", "pip-missing"):
        return None
    return Finding(
        rule="python-venv-missing",
        severity="error",
        certainty="decided" if case.sees("ensurepip-missing") else "likely",
        problem="This Python lacks pip or venv, which Debian and Ubuntu package separately.",
        because="Debian and Ubuntu package venv and pip separately from python3",
        evidence=case.evidence("ensurepip-missing", "pip-missing"),
        fixes=(
            Fix(
                text="install the missing packages",
                safety="ask",
                commands=("sudo apt install python3-venv python3-pip",),
                where="linux",
                changes="installs two packages",
                undo="sudo apt remove python3-venv python3-pip",
            ),
            Fix(
                text="or create the environment with uv, which needs neither",
                safety="ask",
                commands=("uv venv",),
                changes="a new folder .venv",
                undo="rm -r .venv",
            ),
        ),
        confirm=("python3 -m ensurepip --version", "python3 -m pip --version"),
    )


RULE = Rule(
    check=check,
    prior=60,
    signatures=(
        signature(
            "ensurepip-missing",
            "ensurepip is not available",
            "ensurepip is disabled",
            "No module named ensurepip",
            "No module named 'ensurepip'",
            "No module named venv",
            "'ensurepip'",
            "python3-venv",
            "python3-pip",
            "ensurepip",
            pattern=r"ensurepip is (?:not available|disabled)|No module named '?(?:ensurepip"
            r"|venv)\b|'-I?m', 'ensurepip'.{0,60}non-zero|-m"
            r" ensurepip.{0,80}(?:non-zero|fail)"
            r"|need to install the python3[\d.]*-venv|apt(?:-get)? install"
            r" python3-(?:pip|venv)",
        ),
        signature(
            "pip-missing",
            "No module named pip",
            "No module named 'pip'",
            "pip: command not found",
            "pip3: command not found",
            "pip: not found",
            "pip3: not found",
            "'pip' is not recognized",
            "Command 'pip' not found",
            "Command 'pip3' not found",
            "command not found: pip",
            pattern=r"No module named '?pip'?\s*$|\bpip3?: (?:command )?not found"
            r"|'pip3?' is not recognized|Command 'pip3?' not found|command not found:"
            r" pip",
        ),
    ),
)
