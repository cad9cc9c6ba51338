"""A program did something wrong on the GPU, and was ended for it.

**Checks.** Xid 13, 31, 43 and 45, which the driver writes for programs, not for the card.

**Why it matters.** The kernel's log looks like broken hardware. Mostly a kernel read or wrote where
it must not: an index out of range, an extension built for something else.

**Example.** `NVRM: Xid (PCI:0000:01:00): 31, pid=4711, MMU Fault: ENGINE GRAPHICS`

**Fix.** Find the place with CUDA_LAUNCH_BLOCKING=1; safe. If every program does it, suspect memory
or power of the card.

**Source.** https://docs.nvidia.com/deploy/xid-errors (13, 31, 43, 45)
"""

from __future__ import annotations

from flatout.doctor.logs.xid import xid
from flatout.doctor.rule import Case, Rule
from flatout.nouns.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """The driver ended a program. 43 and 45 are only its clearing up."""
    is_fault = case.sees("xid-program-fault")
    if not is_fault and not case.sees("xid-program-ended"):
        return None
    return Finding(
        rule="gpu-kernel-faulted",
        severity="error" if is_fault else "note",
        certainty="likely" if is_fault else "possible",
        problem="A program did something wrong on the GPU, and the driver ended it.",
        evidence=case.evidence("xid-program-fault", "xid-program-ended"),
        fixes=(
            Fix(
                text="find the operation that does it",
                safety="safe",
                commands=("export CUDA_LAUNCH_BLOCKING=1",),
                changes="this shell alone; slow",
                undo="unset CUDA_LAUNCH_BLOCKING",
            ),
        ),
        confirm=("compute-sanitizer python train.py",),
    )


RULE = Rule(
    check=check,
    prior=30,
    signatures=(
        xid("xid-program-fault", 13, 31),
        xid("xid-program-ended", 43, 45),
    ),
)
