"""This GPU is too old for Triton and torch.compile.

**Checks.** Inductor's error about a card below compute capability 7.0.

**Why it matters.** Triton supports only Volta and newer.

**Example.** `Found NVIDIA GeForce GTX 1080 which is too old to be supported by the triton GPU
compiler`

**Fix.** Run without torch.compile; safe.

**Source.** pytorch/pytorch:torch/_inductor/scheduler.py.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix

_SIGNS = ("triton-old-gpu",)


def check(case: Case) -> Finding | None:
    """One of the messages was printed."""
    if not case.sees(*_SIGNS):
        return None
    return Finding(
        rule="triton-gpu-too-old",
        severity="error",
        problem="This GPU is too old for Triton and torch.compile.",
        evidence=case.evidence(*_SIGNS),
        fixes=(
            Fix(
                text="run without torch.compile",
                safety="safe",
                commands=("export TORCH_COMPILE_DISABLE=1",),
                changes="only this shell",
                undo="close the shell",
            ),
        ),
    )


RULE = Rule(
    check=check,
    prior=60,
    signatures=(
        signature(
            "triton-old-gpu",
            "supported by the triton GPU compiler",
            "Triton only supports devices of CUDA Capability",
            "GPUTooOldForTriton",
        ),
    ),
)
