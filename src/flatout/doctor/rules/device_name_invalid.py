"""A device has a name that the framework does not know.

**Checks.** torch's, TensorFlow's and Paddle's words about device strings.

**Why it matters.** torch calls NVIDIA's and AMD's GPUs `cuda`, Apple's `mps`, Intel's `xpu`; not
`gpu`. TensorFlow writes `/GPU:0`, Paddle `gpu:0`.

**Example.** `Expected one of cpu, cuda, ... device type at start of device string: gpu`

**Fix.** Write the name as this framework does; by hand.

**Source.** https://docs.pytorch.org/docs/stable/tensor_attributes.html (torch.device)
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """The framework refuses the string."""
    if not case.sees("device-string"):
        return None
    return Finding(
        rule="device-name-invalid",
        severity="error",
        problem="A device is named in a way that the framework does not know.",
        evidence=case.evidence("device-string"),
        fixes=(Fix(text="torch: `cuda`, `cuda:0`, `cpu`, `mps`; TensorFlow: `/GPU:0`"),),
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
