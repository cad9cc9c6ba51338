"""Forgotten port forwards of Windows lead into a WSL that has moved.

**Checks.** The table of `netsh interface portproxy show`. On the machine: forwards that lead into
WSL's net, and not to this distro.

**Why it matters.** WSL gets a new address at each start. A forward made for the old one takes the
port and leads nowhere, so a service or a cluster's head cannot be reached.

**Example.** `0.0.0.0  29500  172.20.10.5  29500`

**Fix.** Remove these entries, and no others; asked first, and Windows asks for the administrator.

**Source.** MicrosoftDocs/WSL: networking.md.
"""

from __future__ import annotations

from flatout.doctor.reading import Facts, Reading
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Evidence, Finding, Fix
from flatout.nouns.machine import Machine


def check(case: Case) -> Finding | None:
    """There are entries, here or in the text."""
    stale = (case.machine.windows.stale_forwards or ()) if case.machine.windows else ()
    if not case.sees("portproxy-table") and not stale:
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
                text="remove the forwards that lead nowhere",
                safety="ask",
                commands=tuple(_removal(one) for one in stale)
                or ("netsh interface portproxy show all", _removal("<address>/<port>")),
                where="powershell",
                changes="these forwards of Windows; all others stay",
                undo="netsh interface portproxy add v4tov4, with what the table showed",
            ),
        ),
        confirm=("hostname -I", "netsh.exe interface portproxy show all"),
    )


def _removal(forward: str) -> str:
    """ "0.0.0.0/8000 172.20.1.3/8000" -> the command that takes it out."""
    address, port = forward.split()[0].split("/")
    listening = f"listenaddress={address} listenport={port}"
    return f"netsh interface portproxy delete v4tov4 {listening}"


def _in_facts(machine: Machine) -> Facts:
    """Forwards to addresses that are none of this distro's."""
    stale = (machine.windows.stale_forwards or ()) if machine.windows else ()
    return tuple(Evidence(text=f"forward {one}", where="registry") for one in stale)


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
