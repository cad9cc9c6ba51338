"""mpirun was started with more processes than available slots.

**Checks.** Open MPI's error about missing slots.

**Why it matters.** Open MPI counts one slot per core of a host, or as many as the hostfile says.

**Example.** `There are not enough slots available in the system to satisfy the 8 slots that were
requested`

**Fix.** Set `slots=` in the hostfile, or `--map-by :OVERSUBSCRIBE` if intended; safe.

**Source.** docs.open-mpi.org/en/main/launching-apps/scheduling.html.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """Open MPI's error about missing slots."""
    if not case.sees("mpi-slots-missing"):
        return None
    return Finding(
        rule="mpi-no-slots",
        severity="error",
        problem="mpirun was started with more processes than available slots.",
        because="slots are cores, unless the hostfile sets them",
        evidence=case.evidence("mpi-slots-missing"),
        fixes=(
            Fix(
                text="set how many processes a host may run",
                safety="safe",
                commands=("mpirun --host <host>:<processes> <the same arguments>",),
                changes="this run",
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
