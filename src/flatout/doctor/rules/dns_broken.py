"""Host names cannot be resolved.

**Checks.** Messages of apt, pip, git, curl and Docker that a host cannot be resolved. On the
machine, with `--deep`: looks up a name.

**Why it matters.** A container copies its name server from the host when created. Behind a VPN, or
if the host uses `127.0.0.53`, that server does not answer.

**Example.** `curl: (6) Could not resolve host: github.com`

**Fix.** For containers, set `--dns`, or `dns` in daemon.json; otherwise set a working server in the
system's settings; by hand.

**Source.** docs.docker.com/engine/network/ (DNS services);
man7.org/linux/man-pages/man5/resolv.conf.5.html.
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact
from flatout.doctor.rule import Case, Rule
from flatout.schema.finding import Finding, Fix
from flatout.schema.machine import Machine


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
        problem="Host names cannot be resolved.",
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
                text="check which name server is used",
                safety="safe",
                commands=("cat /etc/resolv.conf", "getent hosts github.com"),
                changes="nothing",
            ),
        ),
        confirm=("cat /etc/resolv.conf", "getent hosts github.com"),
    )


def _in_facts(machine: Machine) -> Facts:
    """A name lookup failed."""
    if machine.network is None or machine.network.can_resolve is not False:
        return ()
    return fact("github.com cannot be resolved", "the name server")


RULE = Rule(
    check=check,
    prior=40,
    fact_checks=(FactCheck(sign="name-not-resolved", read=_in_facts),),
    explains=("hugging-face-unreachable", "no-wheel-for-python"),
)
