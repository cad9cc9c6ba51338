"""The clock inside WSL is wrong, usually after the machine slept.

**Checks.** Certificates, packages and tokens that are "not yet valid". On the machine: Windows'
clock against WSL's.

**Why it matters.** A clock that is behind makes TLS, apt and logins fail.

**Example.** `Release file for ... is not valid yet (invalid for another 3h 2min 1s)`

**Fix.** Set WSL's clock to Windows', read through PowerShell; asks first. (`hwclock` is not part of
a fresh Ubuntu 24.04: it is in the package `util-linux-extra`.) Or `wsl --shutdown`.

**Source.** microsoft/WSL#8204, #5324.
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact
from flatout.doctor.fix.commands import SET_CLOCK
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix
from flatout.schema.machine import Machine


def check(case: Case) -> Finding | None:
    """A date is in the future."""
    if not case.sees("not-yet-valid", "clock-skew"):
        return None
    return Finding(
        rule="wsl-clock-skew",
        severity="error" if case.sees("not-yet-valid") else "warning",
        certainty="decided" if case.is_wsl else "likely",
        problem="The clock is wrong: new files and certificates seem to be from the future.",
        because="the clock inside WSL stops while the machine sleeps",
        evidence=case.evidence("not-yet-valid", "clock-skew"),
        fixes=(
            Fix(
                text="set WSL's clock to Windows'",
                safety="ask",
                commands=(SET_CLOCK,),
                where="wsl",
                changes="WSL's clock",
            ),
        ),
        confirm=("date -u", "powershell.exe -c 'Get-Date -AsUTC'"),
    )


def _in_facts(machine: Machine) -> Facts:
    """The two clocks differ by more than reading them takes."""
    skew_s = machine.network.clock_skew_s if machine.network else None
    if skew_s is None or abs(skew_s) < 30 or not machine.host.wsl:
        return ()
    return fact(f"WSL's clock differs from Windows' by {abs(skew_s):.0f} s", "PowerShell")


RULE = Rule(
    check=check,
    fact_checks=(
        FactCheck(sign="clock-skew", read=_in_facts, severity="warning"),
    ),
    signatures=(
        signature(
            "not-yet-valid",
            "not yet valid",
            "not valid yet",
            "RequestTimeTooSkewed",
            "not yet current",
            "issued in the future",
        ),
        signature("clock-skew", "Clock skew detected", "modification time in the future",
                  "has modification time",
                  pattern=r"Clock skew|modification time .{0,20}in the future"),
    ),
)  # fmt: skip
