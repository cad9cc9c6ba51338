"""Another package manager is running.

**Checks.** Locks that apt and dpkg cannot acquire.

**Why it matters.** Unattended upgrades and software centers install in the background, especially
after boot.

**Example.** `E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 1234
(unattended-upgr)`

**Fix.** Wait; safe. Never delete the lock.

**Source.** wiki.debian.org/Teams/Dpkg/FAQ.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """Locks that apt and dpkg cannot acquire."""
    if not case.sees("dpkg-locked"):
        return None
    return Finding(
        rule="apt-locked",
        severity="error",
        problem="Another package manager is running.",
        because="unattended upgrades or another terminal is installing packages",
        evidence=case.evidence("dpkg-locked"),
        fixes=(
            Fix(
                text="wait until the other has finished",
                safety="safe",
                commands=("ps -C apt,apt-get,dpkg,unattended-upgr -o pid,args",),
                where="linux",
                changes="nothing",
            ),
        ),
    )


RULE = Rule(
    check=check,
    prior=55,
    signatures=(
        signature(
            "dpkg-locked",
            "Could not get lock",
            "Unable to acquire the dpkg frontend lock",
            "Unable to lock directory",
            "Waiting for cache lock",
            pattern=r"Could not get lock /var/lib|dpkg frontend lock|Unable to lock (?:directory"
            r"|the administration)|Waiting for cache lock",
        ),
    ),
)
