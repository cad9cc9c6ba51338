"""Tensors of one operation lie on different devices.

**Checks.** What torch says of devices that differ.

**Why it matters.** Model, inputs and buffers must be moved to one device.

**Example.** `Expected all tensors to be on the same device, but found at least two devices,
cuda:0 and cpu!`

**Fix.** Move what stayed behind; by hand.

**Source.** docs.pytorch.org/docs/stable/notes/cuda.html.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Finding, Fix

_SIGNS = ("devices-differ",)


def check(case: Case) -> Finding | None:
    """One of the messages was printed."""
    if not case.sees(*_SIGNS):
        return None
    return Finding(
        rule="tensors-on-different-devices",
        severity="error",
        problem="Tensors of one operation lie on different devices.",
        evidence=case.evidence(*_SIGNS),
        fixes=(
            Fix(
                text=(
                    "move model and inputs to one device; register tensors of a module as buffers"
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
