"""A GPU kernel accessed memory illegally.

**Checks.** CUDA errors 700, 716, 717 and 719, by number or text.

**Why it matters.** The usual causes are an extension's kernel, an out-of-range index or an
overclocked card. The reported line is often not the faulty one.

**Example.** `CUDA error: an illegal memory access was encountered`

**Fix.** Find the kernel with CUDA_LAUNCH_BLOCKING=1, and disable extensions; safe.

**Source.** docs.nvidia.com/cuda/cuda-runtime-api (cudaErrorIllegalAddress);
docs.nvidia.com/compute-sanitizer.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix

_SIGNS = ("illegal-address",)


def check(case: Case) -> Finding | None:
    """One of the messages was printed."""
    if not case.sees(*_SIGNS):
        return None
    return Finding(
        rule="cuda-illegal-memory-access",
        severity="error",
        certainty="likely",
        problem="A GPU kernel accessed memory illegally.",
        evidence=case.evidence(*_SIGNS),
        fixes=(
            Fix(
                text="find the kernel",
                safety="safe",
                commands=(
                    "export CUDA_LAUNCH_BLOCKING=1",
                    "compute-sanitizer python <script>",
                ),
                changes="only this shell",
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
