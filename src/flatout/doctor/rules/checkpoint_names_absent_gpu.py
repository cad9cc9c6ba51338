"""A checkpoint was saved on a GPU that this machine does not have.

**Checks.** torch's errors when it loads tensors to a device that does not exist.

**Why it matters.** torch.save records each tensor's device, and torch.load restores it there: to
`cuda:3` on a machine with one GPU, or to CUDA on a machine without any.

**Example.** `Attempting to deserialize object on CUDA device 3 but torch.cuda.device_count() is 1`

**Fix.** `torch.load(path, map_location="cpu")`; by hand.

**Source.** https://docs.pytorch.org/docs/stable/generated/torch.load.html
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Certainty, Finding, Fix


def check(case: Case) -> Finding | None:
    """torch.load names the device; on a machine without a GPU the cause may be another one."""
    if not case.sees("checkpoint-device"):
        return None
    is_index = case.value("checkpoint-device", "index") is not None
    certainty: Certainty = "decided" if is_index else "possible"
    return Finding(
        rule="checkpoint-names-absent-gpu",
        severity="error",
        certainty=certainty,
        problem="A checkpoint was saved on a GPU that this machine does not have.",
        evidence=case.evidence("checkpoint-device"),
        fixes=(Fix(text='load it with `torch.load(path, map_location="cpu")`'),),
        confirm=('python -c "import torch; print(torch.cuda.device_count())"',),
    )


RULE = Rule(
    check=check,
    prior=55,
    signatures=(
        signature(
            "checkpoint-device",
            "Attempting to deserialize object on",
            pattern=r"deserialize object on (?:a )?CUDA device(?: (?P<index>\d+))?",
        ),
    ),
)
