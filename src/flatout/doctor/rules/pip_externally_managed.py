"""This Python belongs to the system, so pip refuses to install into it.

**Checks.** pip's and uv's error, as PEP 668 requires. On the machine: the marker file of the
system's Python; reported as a note.

**Why it matters.** apt and pip would overwrite each other's files. Debian 12, Ubuntu 23.04, Fedora,
Arch, Alpine and Homebrew therefore mark their Python as externally managed.

**Example.** `error: externally-managed-environment`

**Fix.** Use a virtual environment; asks first. `--break-system-packages` does what its name says.

**Source.** peps.python.org/pep-0668;
packaging.python.org/en/latest/specifications/externally-managed-environments/.
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix
from flatout.schema.machine import Machine


def check(case: Case) -> Finding | None:
    """pip's and uv's error, as PEP 668 requires."""
    if not case.sees("externally-managed"):
        return None
    return Finding(
        rule="pip-externally-managed",
        severity="error",
        problem="This Python belongs to the system, so pip refuses to install into it.",
        because="the system's package manager owns this Python",
        evidence=case.evidence("externally-managed"),
        fixes=(
            Fix(
                text="install into a virtual environment",
                safety="ask",
                commands=(
                    "python3 -m venv .venv",
                    ". .venv/bin/activate",
                    "python -m pip install <package>",
                ),
                changes="a new folder .venv",
                undo="rm -r .venv",
            ),
        ),
    )


def _in_facts(machine: Machine) -> Facts:
    """The examined Python is the system's, and marked."""
    first = next(iter(machine.environments or ()), None)
    if first is None or first.kind != "system" or not first.is_externally_managed:
        return ()
    return fact("EXTERNALLY-MANAGED", "the standard library's folder")


RULE = Rule(
    check=check,
    prior=70,
    fact_checks=(FactCheck(sign="externally-managed", read=_in_facts, severity="note"),),
    signatures=(
        signature(
            "externally-managed",
            "externally-managed-environment",
            "environment is externally managed",
            "is externally managed",
            "break-system-packages",
            pattern=r"externally-managed-environment|(?:environment|interpreter"
            r"|installation).{0,60} is externally managed"
            r"|override this.{0,80}--break-system-packages",
        ),
    ),
    explains=("python-environment-not-writable",),
)
