"""A loss received a value that is not finite, or not between 0 and 1.

**Checks.** Assertions in binary cross entropy and sampling.

**Why it matters.** A logit passed to a loss for probabilities, or NaN after a diverged step,
triggers the same device-side assert as a wrong label.

**Example.** `Assertion 'input_val >= zero && input_val <= one' failed.`

**Fix.** Use the loss that takes logits, and look for NaN before it; by hand.

**Source.** pytorch/pytorch:aten/src/ATen/native/cuda/Loss.cu.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix

_SIGNS = ("loss-range-assertion",)


def check(case: Case) -> Finding | None:
    """One of the messages was printed."""
    if not case.sees(*_SIGNS):
        return None
    return Finding(
        rule="loss-input-out-of-range",
        severity="error",
        problem="A loss received a value that is not finite, or not between 0 and 1.",
        evidence=case.evidence(*_SIGNS),
        fixes=(
            Fix(
                text=(
                    "use the loss that takes logits (BCEWithLogitsLoss), and stop at "
                    "the first value that is not finite"
                ),
            ),
        ),
        confirm=("CUDA_LAUNCH_BLOCKING=1 python <script>",),
    )


RULE = Rule(
    check=check,
    prior=60,
    signatures=(
        signature(
            "loss-range-assertion",
            "input_val",
            "should be between 0 and 1",
            "probability tensor contains",
            "all elements of target should be between",
            "multinomial",
            pattern=r"Assertion.{0,60}input_val >= zero|elements of (?:input|"
            r"target) should be between 0 and 1|probability tensor contains either|"
            r"Assertion.{0,80}probability",
        ),
    ),
    explains=(
        "label-index-out-of-range",
        "cuda-illegal-memory-access",
    ),
)
