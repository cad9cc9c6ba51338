"""A checkpoint was saved on a GPU that is not available here.

**Checks.** `torch.load` errors about CUDA devices.

**Why it matters.** Tensors are loaded to the device they were saved on.

**Example.** `Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is
False.`

**Fix.** Load with map_location; by hand. If there is a GPU, find out why torch does not see it.

**Source.** docs.pytorch.org/docs/stable/generated/torch.load.html.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix

_SIGNS = ("load-on-gpu",)


def check(case: Case) -> Finding | None:
    """One of the messages was printed."""
    if not case.sees(*_SIGNS):
        return None
    return Finding(
        rule="checkpoint-saved-on-gpu",
        severity="error",
        certainty="likely",
        problem="A checkpoint was saved on a GPU that is not available here.",
        evidence=case.evidence(*_SIGNS),
        fixes=(
            Fix(
                text=(
                    "torch.load(..., map_location='cpu'); if there is a GPU here, find "
                    "out why torch does not see it"
                ),
            ),
        ),
        confirm=(
            ('python -c "import torch; print(torch.__version__, torch.cuda.is_available())"'),
        ),
    )


RULE = Rule(
    check=check,
    prior=50,
    signatures=(
        signature(
            "load-on-gpu",
            "deserialize object on a CUDA device but torch.cuda.is_available() is False",
        ),
    ),
)
