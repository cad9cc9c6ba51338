"""Tensors in one operation are on different devices.

**Checks.** torch's errors about differing devices.

**Why it matters.** Model, inputs and buffers must all be on one device.

**Example.** `Expected all tensors to be on the same device, but found at least two devices,
cuda:0 and cpu!`

**Fix.** Move the remaining tensors; by hand.

**Source.** docs.pytorch.org/docs/stable/notes/cuda.html.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix

_SIGNS = ("devices-differ",)


def check(case: Case) -> Finding | None:
    """One of the messages was printed."""
    if not case.sees(*_SIGNS):
        return None
    return Finding(
        rule="tensors-on-different-devices",
        severity="error",
        problem="Tensors in one operation are on different devices.",
        evidence=case.evidence(*_SIGNS),
        fixes=(
            Fix(
                text=(
                    "move the model and inputs to one device; register a module's "
                    "tensors as buffers"
                ),
            ),
        ),
    )


RULE = Rule(
    check=check,
    prior=50,
    signatures=(
        signature(
            "devices-differ",
            "Expected all tensors to be on the same device",
            "should be the same",
            "indices should be either on",
            pattern=r"tensors to be on the same device|"
            r"Input type \(torch\.(?:cuda\.)?\w+\) and weight type"
            r" \(torch\.(?:cuda\.)?\w+\) should be|indices should be either on",
        ),
    ),
    explains=("half-precision-on-cpu",),
)
