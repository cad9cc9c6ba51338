"""mpirun refuses to run as root.

**Checks.** Open MPI's error.

**Why it matters.** Open MPI refuses to start as root by default, but in most containers the user is
root.

**Example.** `mpirun has detected an attempt to run as root.`

**Fix.** In a container, use `--allow-run-as-root`; elsewhere, a regular user; safe.

**Source.** open-mpi/ompi#4451, #6911.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """Open MPI's error."""
    if not case.sees("mpi-as-root"):
        return None
    return Finding(
        rule="mpi-refuses-root",
        severity="error",
        problem="mpirun refuses to run as root.",
        because="the user in a container is root, which Open MPI allows only with an option",
        evidence=case.evidence("mpi-as-root"),
        fixes=(
            Fix(
                text="allow root, in a container",
                safety="safe",
                commands=("mpirun --allow-run-as-root <the same arguments>",),
                where="container",
                changes="this run",
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
