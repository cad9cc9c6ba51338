"""Forgotten port forwards of Windows lead into a WSL that has moved.

**Checks.** The table of `netsh interface portproxy show`. On the machine: forwards that lead into
WSL's net, and not to this distro.

**Why it matters.** WSL gets a new address at each start. A forward made for the old one takes the
port and leads nowhere, so a service or a cluster's head cannot be reached.

**Example.** `0.0.0.0  29500  172.20.10.5  29500`

**Fix.** Remove the entries; by hand, as administrator.

**Source.** MicrosoftDocs/WSL: networking.md.
"""

from __future__ import annotations

from flatout.doctor.reading import Facts, Reading, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Finding, Fix
from flatout.nouns.machine import Machine


def check(case: Case) -> Finding | None:
    """There are entries, here or in the text."""
    number = case.machine.windows.num_portproxies if case.machine.windows else None
    if not case.sees("portproxy-table") and not number:
        return None
    return Finding(
        rule="wsl-portproxy-stale",
        severity="warning",
        certainty="likely",
        problem="Windows forwards ports into WSL, perhaps to an address that is gone.",
        because="WSL's address changes with each start; the forwards stay",
        evidence=case.evidence("portproxy-table"),
        fixes=(
            Fix(
                text="remove the forwards as administrator",
                commands=("netsh interface portproxy show all", "netsh interface portproxy reset"),
                where="powershell",
                changes="every forward of Windows",
            ),
        ),
        confirm=("hostname -I", "netsh.exe interface portproxy show all"),
    )


def _in_facts(machine: Machine) -> Facts:
    """Forwards to addresses that are none of this distro's."""
    number = machine.windows.num_portproxies if machine.windows else None
    return fact(f"{number} forwards to other addresses of WSL's net", "registry") if number else ()


RULE = Rule(
    check=check,
    prior=30,
    readings=(
        Reading(sign="portproxy-table", read=_in_facts, severity="warning", certainty="likely"),
    ),
    signatures=(
        signature(
            "portproxy-table",
            "portproxy",
            "Listen on ipv4",
            pattern=r"Listen on ipv4|portproxy (?:show|add)",
        ),
    ),
)
