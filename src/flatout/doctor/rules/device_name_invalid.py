"""Invalid device name.

**Checks.** Errors of torch, TensorFlow and Paddle about device strings.

**Why it matters.** torch calls NVIDIA's and AMD's GPUs `cuda`, Apple's `mps`, Intel's `xpu`; not
`gpu`. TensorFlow writes `/GPU:0`, Paddle `gpu:0`.

**Example.** `Expected one of cpu, cuda, ... device type at start of device string: gpu`

**Fix.** Use this framework's name for the device; by hand.

**Source.** https://docs.pytorch.org/docs/stable/tensor_attributes.html (torch.device)
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """The framework refuses the string."""
    if not case.sees("device-string"):
        return None
    return Finding(
        rule="device-name-invalid",
        severity="error",
        problem="Invalid device name.",
        evidence=case.evidence("device-string"),
        fixes=(
            Fix(text="use for torch: `cuda`, `cuda:0`, `cpu`, `mps`; for TensorFlow: `/GPU:0`"),
        ),
    )


RULE = Rule(
    check=check,
    prior=60,
    signatures=(
        signature(
            "device-string",
            "Invalid device string",
            "at start of device string",
            "device type at start",
            "The device must be a string which is like",
            "Malformed device specification",
        ),
    ),
)
