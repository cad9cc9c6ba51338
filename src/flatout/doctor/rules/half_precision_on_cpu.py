"""float16 is used on the CPU, which does not implement the operation.

**Checks.** Errors "not implemented for 'Half'".

**Why it matters.** A model loaded in float16 for a GPU ended up on the CPU, often because torch
does not see the GPU.

**Example.** `"addmm_impl_cpu_" not implemented for 'Half'`

**Fix.** Load in float32 or bfloat16, or find out why no GPU is used; by hand.

**Source.** pytorch/pytorch#74625.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix

_SIGNS = ("half-on-cpu",)


def check(case: Case) -> Finding | None:
    """One of the messages was printed."""
    if not case.sees(*_SIGNS):
        return None
    return Finding(
        rule="half-precision-on-cpu",
        severity="error",
        certainty="likely",
        problem="float16 is used on the CPU, which does not implement the operation.",
        evidence=case.evidence(*_SIGNS),
        fixes=(
            Fix(
                text=(
                    "load the model in float32 or bfloat16; if there is a GPU, find out"
                    " why it is not used"
                ),
            ),
        ),
        confirm=(
            ('python -c "import torch; print(torch.__version__, torch.cuda.is_available())"'),
        ),
    )


RULE = Rule(
    check=check,
    prior=40,
    signatures=(
        signature(
            "half-on-cpu",
            "not implemented for 'Half'",
            "Input type (torch.cuda.HalfTensor) and weight type (torch.HalfTensor)",
        ),
    ),
)
