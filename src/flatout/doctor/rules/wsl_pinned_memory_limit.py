"""Pinned host memory has run out; WSL has little of it.

**Checks.** Failed allocations that the program reports as host or pinned memory.

**Why it matters.** Pinned memory makes copies to the GPU fast. Under WSL, only part of the
machine's memory can be pinned, so "CUDA out of memory" does not refer to the card.

**Example.** `could not allocate pinned host memory of size: 415990272`

**Fix.** Pin less: fewer loader workers, less prefetch, `pin_memory=False` as a last resort; safe.

**Source.** docs.nvidia.com/cuda/wsl-user-guide/ (known limitations); microsoft/WSL#8447, #14078.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """CUDA reports a failed host allocation."""
    if not case.sees("pinned-allocation-failed"):
        return None
    return Finding(
        rule="wsl-pinned-memory-limit",
        severity="error",
        certainty="decided" if case.is_wsl else "likely",
        problem="Pinned host memory has run out, not the GPU's memory.",
        because="WSL can pin only part of the machine's memory",
        evidence=case.evidence("pinned-allocation-failed"),
        fixes=(
            Fix(
                text="pin less: fewer loader workers, a smaller prefetch, or pin_memory=False",
                safety="safe",
                changes="copies to the GPU may take longer",
            ),
        ),
        confirm=("free -m", "ulimit -l"),
    )


RULE = Rule(
    check=check,
    signatures=(
        signature(
            "pinned-allocation-failed",
            "pinned host memory",
            "bytes on host",
            "cudaHostAlloc",
            "cudaMallocHost",
            "cuMemHostAlloc",
            "pin_memory",
            "pinned memory",
            pattern=r"could not allocate pinned|bytes on host: CUDA_ERROR|"
            r"(?:cudaHostAlloc|cudaMallocHost|cuMemHostAlloc|cudaHostRegister|pin_memory|pinned"
            r" memory)[^\n]{0,120}(?:out of memory|OutOfMemory|failed|OUT_OF_MEMORY)"
            r"|\.pin_memory\(\)[^\n]*\n(?:[^\n]*\n){0,12}[^\n]{0,60}CUDA error: out of"
            r"|pin memory thread[^\n]{0,60}\n?(?:[^\n]*\n){0,12}[^\n]{0,60}CUDA error: out of",
            lines=14,
        ),
    ),
    explains=("gpu-memory-too-small", "gpu-memory-fragmentation",
              "gpu-memory-used-by-other-process"),
)  # fmt: skip
