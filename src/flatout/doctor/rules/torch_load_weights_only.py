"""torch 2.6 and newer load weights alone, and this file holds more.

**Checks.** What `torch.load` says of globals that it does not unpickle.

**Why it matters.** Pickled objects may run code. Since 2.6 they are refused unless asked for.

**Example.** `Weights only load failed.`

**Fix.** Newer versions of the package; or `weights_only=False` for files that you trust; by hand.

**Source.** docs.pytorch.org/docs/stable/notes/serialization.html.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Finding, Fix

_SIGNS = ("weights-only",)


def check(case: Case) -> Finding | None:
    """One of the messages was printed."""
    if not case.sees(*_SIGNS):
        return None
    return Finding(
        rule="torch-load-weights-only",
        severity="error",
        problem="torch 2.6 and newer load weights alone, and this file holds more.",
        evidence=case.evidence(*_SIGNS),
        fixes=(
            Fix(
                text=(
                    "save the state dict alone; or pass weights_only=False for a file "
                    "whose origin you trust"
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
