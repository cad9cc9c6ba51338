"""A setting of torch's memory allocator is invalid.

**Checks.** torch's errors about PYTORCH_CUDA_ALLOC_CONF or PYTORCH_ALLOC_CONF.

**Why it matters.** torch fails at its first allocation if the variable has an unknown option or an
out-of-range value.

**Example.** `Unrecognized CachingAllocator option: max_split_size`

**Fix.** Unset the variable, or spell the option as this torch version expects it; safe.

**Source.** https://docs.pytorch.org/docs/stable/notes/cuda.html (PYTORCH_CUDA_ALLOC_CONF)
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """torch cannot read the setting."""
    if not case.sees("allocator-option"):
        return None
    return Finding(
        rule="allocator-setting-invalid",
        severity="error",
        problem="PYTORCH_CUDA_ALLOC_CONF is invalid.",
        evidence=case.evidence("allocator-option"),
        fixes=(
            Fix(
                text="unset the variable",
                safety="safe",
                commands=("unset PYTORCH_CUDA_ALLOC_CONF PYTORCH_ALLOC_CONF",),
                changes="only this shell",
            ),
        ),
        confirm=("printenv | grep ALLOC_CONF",),
    )


RULE = Rule(
    check=check,
    prior=60,
    signatures=(
        signature(
            "allocator-option",
            "CachingAllocator",
            "CUDAAllocatorConfig",
            "AcceleratorAllocatorConfig",
            "ALLOC_CONF",
            "CachingAllocator option",
            pattern=r"Unrecognized (?:key|(?:CUDA)?CachingAllocator option)"
            r"|Error parsing CachingAlloc|CachingAllocator option \S{1,40} too (?:small|large)"
            r"|(?:Unrecognized|Expected).{0,80}AllocatorConfig",
        ),
    ),
)
