"""mpirun is asked for more processes than it counts places.

**Checks.** Open MPI's count of slots.

**Why it matters.** Open MPI counts one place for each core of a host, or what the hostfile says.

**Example.** `There are not enough slots available in the system to satisfy the 8 slots that were
requested`

**Fix.** `slots=` in the hostfile, or `--map-by :OVERSUBSCRIBE` where it is meant; safe.

**Source.** docs.open-mpi.org/en/main/launching-apps/scheduling.html.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """Open MPI's count of slots."""
    if not case.sees("mpi-slots-missing"):
        return None
    return Finding(
        rule="mpi-no-slots",
        severity="error",
        problem="mpirun is asked for more processes than it counts places.",
        because="places are cores, or what the hostfile says",
        evidence=case.evidence("mpi-slots-missing"),
        fixes=(
            Fix(
                text="say how many processes a host takes",
                safety="safe",
                commands=("mpirun --host <host>:<processes> <the same arguments>",),
                changes="this start",
            ),
        ),
    )


RULE = Rule(
    check=check,
    prior=50,
    signatures=(
        signature(
            "mpi-slots-missing",
            "not enough slots available",
        ),
    ),
)
