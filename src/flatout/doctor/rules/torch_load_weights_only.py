"""torch 2.6 and newer load only weights by default, but this file contains other objects.

**Checks.** `torch.load` errors about globals that it does not unpickle.

**Why it matters.** Pickled objects can execute code. Since 2.6 they are rejected by default.

**Example.** `Weights only load failed.`

**Fix.** Install a newer version of the package, or pass `weights_only=False` for files that you
trust; by hand.

**Source.** docs.pytorch.org/docs/stable/notes/serialization.html.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix

_SIGNS = ("weights-only",)


def check(case: Case) -> Finding | None:
    """One of the messages was printed."""
    if not case.sees(*_SIGNS):
        return None
    return Finding(
        rule="torch-load-weights-only",
        severity="error",
        problem=(
            "torch 2.6 and newer load only weights by default, but this file contains other"
            " objects."
        ),
        evidence=case.evidence(*_SIGNS),
        fixes=(
            Fix(
                text=(
                    "save only the state dict; or pass weights_only=False for a file "
                    "from a source you trust"
                ),
            ),
        ),
    )


RULE = Rule(
    check=check,
    prior=60,
    signatures=(
        signature(
            "weights-only",
            "Weights only load failed",
            "WeightsUnpickler error",
            "Unsupported global: GLOBAL",
            "CVE-2025-32434",
        ),
    ),
    explains=("checkpoint-damaged",),
)
