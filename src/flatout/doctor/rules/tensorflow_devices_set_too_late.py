"""TensorFlow's devices are configured after they were started.

**Checks.** TensorFlow's words about devices that can no longer be modified.

**Why it matters.** Memory growth, limits and visibility are read once, when the first operation
starts the GPUs. Set for one GPU alone, memory growth is refused as well.

**Example.** `Physical devices cannot be modified after being initialized`

**Fix.** Configure them at the beginning of the program, all alike; by hand.

**Source.** https://www.tensorflow.org/guide/gpu (limiting GPU memory growth)
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """TensorFlow says so."""
    if not case.sees("tf-devices-fixed"):
        return None
    return Finding(
        rule="tensorflow-devices-set-too-late",
        severity="error",
        problem="TensorFlow's devices are configured after they were started, or not all alike.",
        evidence=case.evidence("tf-devices-fixed"),
        fixes=(Fix(text="configure all GPUs alike, before anything else of TensorFlow is called"),),
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
