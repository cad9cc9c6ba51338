"""The ranks do not make the same calls, or not with the same shapes.

**Checks.** torch's check of collectives against each other.

**Why it matters.** Collectives are matched by order alone. Where one rank has another shape or
another call, the result is wrong, or everything waits.

**Example.** `Detected mismatch between collectives on ranks. Rank 0 is running collective: ...`

**Fix.** Equal batches on all ranks (`drop_last=True`), and no collective under `if rank == 0`; by
hand.

**Source.** docs.pytorch.org/docs/stable/distributed.html (debugging).
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """torch's check of collectives against each other."""
    if not case.sees("collectives-mismatched"):
        return None
    return Finding(
        rule="collectives-differ-between-ranks",
        severity="error",
        problem="The ranks do not make the same calls, or not with the same shapes.",
        because="collectives are matched by their order alone",
        evidence=case.evidence("collectives-mismatched"),
        fixes=(
            Fix(
                text="give all ranks equally many batches of equal shape, and take "
                "collectives out of `if rank == 0`",
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
