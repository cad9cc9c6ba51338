"""Stale Windows port forwards point to an old WSL address.

**Checks.** The table of `netsh interface portproxy show`. On the machine: forwards into WSL's
network that do not lead to this distro.

**Why it matters.** WSL gets a new address at each start. A forward to the old address occupies the
port and leads nowhere, so a service or a cluster's head node cannot be reached.

**Example.** `0.0.0.0  29500  172.20.10.5  29500`

**Fix.** Remove only these entries; asks first, and Windows asks for administrator rights.

**Source.** MicrosoftDocs/WSL: networking.md.
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Evidence, Finding, Fix
from flatout.schema.machine import Machine


def check(case: Case) -> Finding | None:
    """There are forwards, on this machine or in the text."""
    stale = (case.machine.windows.stale_forwards or ()) if case.machine.windows else ()
    if not case.sees("portproxy-table") and not stale:
        return None
    return Finding(
        rule="wsl-portproxy-stale",
        severity="warning",
        certainty="likely",
        problem="Windows forwards ports into WSL, possibly to an old address.",
        because="WSL's address changes with each start; the forwards stay",
        evidence=case.evidence("portproxy-table"),
        fixes=(
            Fix(
                text="remove the forwards that lead nowhere",
                safety="ask",
                commands=tuple(_removal(one) for one in stale)
                or ("netsh interface portproxy show all", _removal("<address>/<port>")),
                where="powershell",
                changes="removes these Windows forwards; all others stay",
                undo="netsh interface portproxy add v4tov4, with the values from the table",
            ),
        ),
        confirm=("hostname -I", "netsh.exe interface portproxy show all"),
    )


def _removal(forward: str) -> str:
    """ "0.0.0.0/8000 172.20.1.3/8000" -> the command that removes it."""
    address, port = forward.split()[0].split("/")
    listening = f"listenaddress={address} listenport={port}"
    return f"netsh interface portproxy delete v4tov4 {listening}"


def _in_facts(machine: Machine) -> Facts:
    """Forwards to addresses other than this distro's."""
    stale = (machine.windows.stale_forwards or ()) if machine.windows else ()
    return tuple(Evidence(text=f"forward {one}", where="registry") for one in stale)


RULE = Rule(
    check=check,
    prior=30,
    fact_checks=(
        FactCheck(sign="portproxy-table", read=_in_facts, severity="warning", certainty="likely"),
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
