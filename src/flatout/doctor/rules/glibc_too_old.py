"""The system's C library is older than this program needs.

**Checks.** Versions of GLIBC that the loader does not find. On the machine: a glibc before 2.28,
which torch's wheels ask for since 2.6.

**Why it matters.** glibc belongs to the distribution and cannot be replaced. A wheel or binary
from a newer system does not run.

**Example.** `/lib64/libc.so.6: version 'GLIBC_2.28' not found`

**Fix.** A newer distribution or container, or an older wheel; by hand.

**Source.** peps.python.org/pep-0600; github.com/pypa/manylinux.
"""

from __future__ import annotations

from flatout.doctor.reading import Facts, Reading, fact, version
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Finding, Fix
from flatout.nouns.machine import Machine

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
                    "use a newer distribution, or a container of one; or an older "
                    "version of the program"
                ),
            ),
        ),
        confirm=("ldd --version",),
    )


def _in_facts(machine: Machine) -> Facts:
    """No present wheel of torch installs on it.

    Source: the tags of torch's wheels, manylinux_2_28.
    """
    glibc = machine.host.glibc
    if not version(glibc) or version(glibc) >= (2, 28):
        return ()
    return fact(f"glibc {glibc}; torch's wheels ask for 2.28", "confstr")


RULE = Rule(
    check=check,
    prior=65,
    readings=(Reading(sign="glibc-version-missing", read=_in_facts, severity="warning"),),
    signatures=(
        signature(
            "glibc-version-missing", "GLIBC_", pattern=r"\bGLIBC_2\.\d+(?:\.\d+)?\W{0,3} not found"
        ),
    ),
    explains=("libstdcxx-too-old",),
)
