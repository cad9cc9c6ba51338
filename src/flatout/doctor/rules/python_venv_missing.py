"""This Python has no pip, or cannot make environments: Debian and Ubuntu package them apart.

**Checks.** venv without ensurepip, and pip that is not found.

**Why it matters.** Debian and Ubuntu take venv, ensurepip and pip out of python3 and put them
into packages of their own.

**Example.** `The virtual environment was not created successfully because ensurepip is not
available.`

**Fix.** `sudo apt install python3-venv python3-pip`; asked first. uv needs neither.

**Source.** packages.debian.org/stable/python3-venv; docs.astral.sh/uv/pip/environments/.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """venv without ensurepip, and pip that is not found."""
    if not case.sees("ensurepip-missing", "pip-missing"):
        return None
    return Finding(
        rule="python-venv-missing",
        severity="error",
        certainty="decided" if case.sees("ensurepip-missing") else "likely",
        problem="This Python has no pip, or cannot make environments: Debian and Ubuntu package"
        " them apart.",
        because="Debian and Ubuntu package venv and pip apart from python3",
        evidence=case.evidence("ensurepip-missing", "pip-missing"),
        fixes=(
            Fix(
                text="install what is missing",
                safety="ask",
                commands=("sudo apt install python3-venv python3-pip",),
                where="linux",
                changes="installs two packages",
                undo="sudo apt remove python3-venv python3-pip",
            ),
            Fix(
                text="or make the environment with uv, which needs neither",
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
