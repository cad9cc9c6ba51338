"""A program caused a fault on the GPU and was terminated.

**Checks.** Xid 13, 31, 43 and 45, which report program errors, not hardware errors.

**Why it matters.** The kernel's log looks like broken hardware. Usually a GPU kernel made an
illegal memory access: an out-of-range index, or an extension built for something else.

**Example.** `NVRM: Xid (PCI:0000:01:00): 31, pid=4711, MMU Fault: ENGINE GRAPHICS`

**Fix.** Find the operation with CUDA_LAUNCH_BLOCKING=1; safe. If every program fails, suspect the
card's memory or power.

**Source.** https://docs.nvidia.com/deploy/xid-errors (13, 31, 43, 45)
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.scan.xid import xid
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """The driver terminated a program. Xid 43 and 45 only report the cleanup."""
    is_fault = case.sees("xid-program-fault")
    if not is_fault and not case.sees("xid-program-ended"):
        return None
    return Finding(
        rule="gpu-kernel-faulted",
        severity="error" if is_fault else "note",
        certainty="likely" if is_fault else "possible",
        problem="A program caused a fault on the GPU, and the driver terminated it.",
        evidence=case.evidence("xid-program-fault", "xid-program-ended"),
        fixes=(
            Fix(
                text="find the operation that causes it",
                safety="safe",
                commands=("export CUDA_LAUNCH_BLOCKING=1",),
                changes="only this shell; programs in it run slower",
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
