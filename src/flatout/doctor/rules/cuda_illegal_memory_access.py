"""A kernel read or wrote where it must not.

**Checks.** CUDA's errors 700, 716, 717 and 719 and their texts.

**Why it matters.** Mostly a kernel of an extension, an index out of range, or a card that is
overclocked. The line that is blamed is often not the one.

**Example.** `CUDA error: an illegal memory access was encountered`

**Fix.** Name the kernel with CUDA_LAUNCH_BLOCKING=1, leave extensions out; safe.

**Source.** docs.nvidia.com/cuda/cuda-runtime-api (cudaErrorIllegalAddress);
docs.nvidia.com/compute-sanitizer.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Finding, Fix

_SIGNS = ("illegal-address",)


def check(case: Case) -> Finding | None:
    """One of the messages was printed."""
    if not case.sees(*_SIGNS):
        return None
    return Finding(
        rule="cuda-illegal-memory-access",
        severity="error",
        certainty="likely",
        problem="A kernel read or wrote where it must not.",
        evidence=case.evidence(*_SIGNS),
        fixes=(
            Fix(
                text="find the kernel",
                safety="safe",
                commands=(
                    "export CUDA_LAUNCH_BLOCKING=1",
                    "compute-sanitizer python <script>",
                ),
                changes="this shell alone",
                undo="close the shell",
            ),
        ),
        confirm=(
            "sudo dmesg | grep -i xid",
            "CUDA_LAUNCH_BLOCKING=1 python <script>",
        ),
    )


RULE = Rule(
    check=check,
    prior=20,
    signatures=(
        signature(
            "illegal-address",
            "illegal memory access",
            "CUDA_ERROR_ILLEGAL_ADDRESS",
            "cudaErrorIllegalAddress",
            "misaligned address",
            "unspecified launch failure",
            "CUDA_ERROR_LAUNCH_FAILED",
            "cudaErrorLaunchFailure",
            "illegal instruction was encountered",
        ),
    ),
)
