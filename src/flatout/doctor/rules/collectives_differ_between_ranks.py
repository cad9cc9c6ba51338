"""Ranks diverged: they called different collectives, or used different shapes.

**Checks.** torch's check that collectives match across ranks.

**Why it matters.** Collectives are matched only by their order. If one rank makes a different call
or uses a different shape, the result is wrong or all ranks hang.

**Example.** `Detected mismatch between collectives on ranks. Rank 0 is running collective: ...`

**Fix.** Use equal batches on all ranks (`drop_last=True`), and no collective inside `if rank == 0`;
by hand.

**Source.** docs.pytorch.org/docs/stable/distributed.html (debugging).
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """torch's check that collectives match across ranks."""
    if not case.sees("collectives-mismatched"):
        return None
    return Finding(
        rule="collectives-differ-between-ranks",
        severity="error",
        problem="Ranks diverged: they called different collectives, or used different shapes.",
        because="collectives are matched only by their order",
        evidence=case.evidence("collectives-mismatched"),
        fixes=(
            Fix(
                text=(
                    "give all ranks the same number of batches with the same shapes, and "
                    "move collectives out of `if rank == 0`"
                ),
            ),
        ),
    )


RULE = Rule(
    check=check,
    prior=60,
    signatures=(
        signature(
            "collectives-mismatched",
            "mismatch between collectives on ranks",
            "inconsistencies between shapes",
            "verify_params_across_processes",
            "params_across_processes",
            "appears not to match sizes of the same param",
            pattern=r"mismatch between collectives on ranks"
            r"|(?:expects same model across all ranks|DDP expects same model"
            r"|appears not to match sizes)",
        ),
    ),
    explains=("collective-timed-out", "distributed-worker-failed"),
)
