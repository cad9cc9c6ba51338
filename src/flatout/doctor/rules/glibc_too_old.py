"""The system's C library is older than this program needs.

**Checks.** GLIBC versions that the loader cannot find. On the machine: a glibc older than 2.28,
which torch's wheels need since 2.6.

**Why it matters.** glibc belongs to the distribution and cannot be replaced. Wheels and binaries
built for a newer system do not run.

**Example.** `/lib64/libc.so.6: version 'GLIBC_2.28' not found`

**Fix.** Use a newer distribution or container, or an older wheel; by hand.

**Source.** peps.python.org/pep-0600; github.com/pypa/manylinux.
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact, version
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix
from flatout.schema.machine import Machine

_SIGNS = ("glibc-version-missing",)


def check(case: Case) -> Finding | None:
    """One of the messages was printed."""
    if not case.sees(*_SIGNS):
        return None
    return Finding(
        rule="glibc-too-old",
        severity="error",
        problem="The system's C library is older than this program needs.",
        because="glibc comes with the distribution",
        evidence=case.evidence(*_SIGNS),
        fixes=(
            Fix(
                text=(
                    "use a newer distribution, a container with one, or an older "
                    "version of the program"
                ),
            ),
        ),
        confirm=("ldd --version",),
    )


def _in_facts(machine: Machine) -> Facts:
    """No current torch wheel can be installed with it.

    Source: the tags of torch's wheels, manylinux_2_28.
    """
    glibc = machine.host.glibc
    if not version(glibc) or version(glibc) >= (2, 28):
        return ()
    return fact(f"glibc {glibc}; torch's wheels need 2.28", "confstr")


RULE = Rule(
    check=check,
    prior=65,
    fact_checks=(FactCheck(sign="glibc-version-missing", read=_in_facts, severity="warning"),),
    signatures=(
        signature(
            "glibc-version-missing", "GLIBC_", pattern=r"\bGLIBC_2\.\d+(?:\.\d+)?\W{0,3} not found"
        ),
    ),
    explains=("libstdcxx-too-old",),
)
