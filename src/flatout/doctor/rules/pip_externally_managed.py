"""This Python belongs to the system, and pip may not write into it.

**Checks.** The refusal of pip and uv, as PEP 668 asks for. On the machine: the mark of the system's
Python; a note.

**Why it matters.** apt and pip would overwrite each other's files. Debian 12, Ubuntu 23.04,
Fedora, Arch, Alpine and Homebrew therefore mark their Python as theirs.

**Example.** `error: externally-managed-environment`

**Fix.** A virtual environment; asked first. `--break-system-packages` does what its name says.

**Source.** peps.python.org/pep-0668;
packaging.python.org/en/latest/specifications/externally-managed-environments/.
"""

from __future__ import annotations

from flatout.doctor.reading import Facts, Reading, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Finding, Fix
from flatout.nouns.machine import Machine


def check(case: Case) -> Finding | None:
    """The refusal of pip and uv, as PEP 668 asks for."""
    if not case.sees("externally-managed"):
        return None
    return Finding(
        rule="pip-externally-managed",
        severity="error",
        problem="This Python belongs to the system, and pip may not write into it.",
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
    """The Python asked about is the system's, and marked."""
    first = next(iter(machine.environments or ()), None)
    if first is None or first.kind != "system" or not first.is_externally_managed:
        return ()
    return fact("EXTERNALLY-MANAGED", "the standard library's folder")


RULE = Rule(
    check=check,
    prior=70,
    readings=(Reading(sign="externally-managed", read=_in_facts, severity="note"),),
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
