"""TensorFlow's devices are configured after they were initialized.

**Checks.** TensorFlow's error about devices that can no longer be modified.

**Why it matters.** Memory growth, limits and visibility are read once, when the first operation
initializes the GPUs. Memory growth must also be the same for all GPUs.

**Example.** `Physical devices cannot be modified after being initialized`

**Fix.** Configure all of them identically at the beginning of the program; by hand.

**Source.** https://www.tensorflow.org/guide/gpu (limiting GPU memory growth)
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """TensorFlow reports it."""
    if not case.sees("tf-devices-fixed"):
        return None
    return Finding(
        rule="tensorflow-devices-set-too-late",
        severity="error",
        problem="TensorFlow's devices are configured after they were initialized, or differently.",
        evidence=case.evidence("tf-devices-fixed"),
        fixes=(Fix(text="configure all GPUs identically, before any other TensorFlow call"),),
    )


RULE = Rule(
    check=check,
    prior=60,
    signatures=(
        signature(
            "tf-devices-fixed",
            "cannot be modified after being initialized",
            "must be set before GPUs have been initialized",
            "Memory growth cannot differ between GPU devices",
            "Cannot set memory growth on device when virtual devices configured",
        ),
    ),
)
