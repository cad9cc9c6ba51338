"""An installation was interrupted, and packages are half-configured.

**Checks.** dpkg's and apt's request for repair. On the machine: packages that are unpacked but not
configured.

**Why it matters.** dpkg stops at packages it could not configure, because a DKMS build failed, the
disk was full or the machine was switched off.

**Example.** `E: dpkg was interrupted, you must manually run 'sudo dpkg --configure -a' to correct
the problem.`

**Fix.** `sudo dpkg --configure -a`, then `sudo apt --fix-broken install`; asks first.

**Source.** wiki.debian.org/Teams/Dpkg/FAQ; manpages.debian.org/dpkg.
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix
from flatout.schema.machine import Machine
from flatout.schema.units import counted_text


def check(case: Case) -> Finding | None:
    """dpkg's and apt's request for repair."""
    if not case.sees("dpkg-was-interrupted", "dpkg-sub-process"):
        return None
    return Finding(
        rule="dpkg-interrupted",
        severity="error",
        certainty="decided" if case.sees("dpkg-was-interrupted") else "likely",
        problem="An installation was interrupted, and packages are half-configured.",
        because="a package could not be configured",
        evidence=case.evidence("dpkg-was-interrupted", "dpkg-sub-process"),
        fixes=(
            Fix(
                text="finish the configuration",
                safety="ask",
                commands=("sudo dpkg --configure -a", "sudo apt --fix-broken install"),
                where="linux",
                changes="finishes or removes packages; apt shows which",
            ),
        ),
    )


def _in_facts(machine: Machine) -> Facts:
    """dpkg lists packages that are not configured."""
    number = machine.packages.num_unfinished if machine.packages else None
    return fact(f"{counted_text(number, 'package')} not configured", "dpkg") if number else ()


RULE = Rule(
    check=check,
    prior=45,
    fact_checks=(FactCheck(sign="dpkg-was-interrupted", read=_in_facts, severity="warning"),),
    signatures=(
        signature(
            "dpkg-was-interrupted",
            "dpkg was interrupted",
            "dpkg --configure -a",
        ),
        signature(
            "dpkg-sub-process",
            "Sub-process /usr/bin/dpkg returned an error code",
            "Unmet dependencies. Try",
            "--fix-broken install",
            pattern=r"Sub-process /usr/bin/dpkg returned an error code|--fix-broken install",
        ),
    ),
)
