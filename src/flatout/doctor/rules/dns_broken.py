"""Host names are not resolved.

**Checks.** apt, pip, git, curl and Docker that cannot resolve a host. On the machine, with
`--deep`: a name is looked up.

**Why it matters.** A container takes its name server from the host when it is made; behind a VPN,
or where the host asks `127.0.0.53`, that one does not answer.

**Example.** `curl: (6) Could not resolve host: github.com`

**Fix.** `--dns` or `dns` in daemon.json for containers; a working server in the system's settings
elsewhere; by hand.

**Source.** docs.docker.com/engine/network/ (DNS services);
man7.org/linux/man-pages/man5/resolv.conf.5.html.
"""

from __future__ import annotations

from flatout.doctor.reading import Facts, Reading, fact
from flatout.doctor.rule import Case, Rule
from flatout.nouns.finding import Finding, Fix
from flatout.nouns.machine import Machine


def check(case: Case) -> Finding | None:
    """A name was not resolved."""
    if not case.sees("name-not-resolved"):
        return None
    is_elsewhere = case.machine.host.os == "windows" or case.is_container
    is_certain = is_elsewhere and not case.is_wsl
    return Finding(
        rule="dns-broken",
        severity="error",
        certainty="likely" if is_certain else "possible",
        problem="Host names are not resolved.",
        because="the name server of this machine or container does not answer, or there is no "
        "network",
        evidence=case.evidence("name-not-resolved", "resolv-conf-nameserver"),
        fixes=(
            Fix(
                text="give the container a name server",
                safety="ask",
                commands=("docker run --dns 1.1.1.1 <the same arguments>",),
                where="host",
                changes="a new container",
            ),
            Fix(
                text="see which server is asked",
                safety="safe",
                commands=("cat /etc/resolv.conf", "getent hosts github.com"),
                changes="nothing",
            ),
        ),
        confirm=("cat /etc/resolv.conf", "getent hosts github.com"),
    )


def _in_facts(machine: Machine) -> Facts:
    """A name was looked up, and was not found."""
    if machine.network is None or machine.network.can_resolve is not False:
        return ()
    return fact("github.com is not found", "the name server")


RULE = Rule(
    check=check,
    prior=40,
    readings=(Reading(sign="name-not-resolved", read=_in_facts),),
    explains=("hugging-face-unreachable", "no-wheel-for-python"),
)
