"""A setting of torch's memory allocator is not understood.

**Checks.** torch's words about PYTORCH_CUDA_ALLOC_CONF or PYTORCH_ALLOC_CONF.

**Why it matters.** torch ends at its first allocation when the variable has an option it does not
know, or a value outside its bounds.

**Example.** `Unrecognized CachingAllocator option: max_split_size`

**Fix.** Take the variable back, or write it as this torch knows it; safe.

**Source.** https://docs.pytorch.org/docs/stable/notes/cuda.html (PYTORCH_CUDA_ALLOC_CONF)
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """torch cannot read the setting."""
    if not case.sees("allocator-option"):
        return None
    return Finding(
        rule="allocator-setting-invalid",
        severity="error",
        problem="torch does not understand PYTORCH_CUDA_ALLOC_CONF.",
        evidence=case.evidence("allocator-option"),
        fixes=(
            Fix(
                text="take the setting back",
                safety="safe",
                commands=("unset PYTORCH_CUDA_ALLOC_CONF PYTORCH_ALLOC_CONF",),
                changes="this shell alone",
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
