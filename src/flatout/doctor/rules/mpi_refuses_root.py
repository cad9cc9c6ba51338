"""mpirun refuses to run as root.

**Checks.** Open MPI's refusal.

**Why it matters.** Open MPI guards against starting as root, which is what one is in most
containers.

**Example.** `mpirun has detected an attempt to run as root.`

**Fix.** In a container `--allow-run-as-root`; elsewhere a user of one's own; safe.

**Source.** open-mpi/ompi#4451, #6911.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """Open MPI's refusal."""
    if not case.sees("mpi-as-root"):
        return None
    return Finding(
        rule="mpi-refuses-root",
        severity="error",
        problem="mpirun refuses to run as root.",
        because="in a container one is root, and Open MPI asks to be told that this is meant",
        evidence=case.evidence("mpi-as-root"),
        fixes=(
            Fix(
                text="say that it is meant, in a container",
                safety="safe",
                commands=("mpirun --allow-run-as-root <the same arguments>",),
                where="container",
                changes="this start",
            ),
        ),
    )


RULE = Rule(
    check=check,
    prior=50,
    signatures=(
        signature(
            "mpi-as-root",
            "detected an attempt to run as root",
            "has detected an attempt to run as root",
        ),
    ),
)
