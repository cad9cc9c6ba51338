"""CUDA fails to start under WSL with several cards: error 2, out of memory.

**Checks.** `cudaGetDeviceCount` or `cuInit` failing with "out of memory" before any allocation.

**Why it matters.** Under WSL, each card that CUDA opens takes address space and host memory from
the same small pool. Every framework then reports that there is no GPU.

**Example.** `Unexpected error from cudaGetDeviceCount() ... Error 2: out of memory`

**Fix.** Let CUDA open fewer cards: `CUDA_VISIBLE_DEVICES=0`; safe.

**Source.** pytorch/pytorch#124280; microsoft/WSL#10269.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """Counting devices fails with "out of memory"."""
    if not case.sees("cuda-init-out-of-memory"):
        return None
    is_multi = case.sees("several-gpus-told") or len(case.machine.gpus) > 1
    return Finding(
        rule="wsl-multi-gpu-init-out-of-memory",
        severity="error",
        certainty="decided" if case.is_wsl and is_multi else "likely",
        problem="CUDA runs out of memory during initialization, before any allocation.",
        because="under WSL, this happens when CUDA opens several cards",
        evidence=case.evidence("cuda-init-out-of-memory", "several-gpus-told"),
        fixes=(
            Fix(
                text="let CUDA open only one card",
                safety="safe",
                commands=("export CUDA_VISIBLE_DEVICES=0",),
                where="wsl",
                changes="only this shell",
                undo="unset CUDA_VISIBLE_DEVICES",
            ),
        ),
        confirm=("nvidia-smi", "free -m"),
    )


RULE = Rule(
    check=check,
    signatures=(
        signature(
            "several-gpus-told",
            "GPUs",
            "GeForce",
            "RTX",
            "GTX",
            "Tesla",
            "Quadro",
            pattern=r"\b(?:[2-9]|1\d)x? GPUs\b|\b(?:[2-9]|1\d) ?[x*] ?(?:NVIDIA )?(?:GeForce|[RG]TX"
            r"|Tesla|Quadro)",
        ),
    ),
    explains=("gpu-memory-used-by-other-process", "gpu-memory-too-small"),
)
