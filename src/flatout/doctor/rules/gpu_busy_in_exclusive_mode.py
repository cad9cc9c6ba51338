"""The GPU is in exclusive mode and taken, or does not answer.

**Checks.** CUDA's error 46, devices busy or unavailable.

**Why it matters.** In compute mode Exclusive_Process one process may use a card; the second is
refused at its first call. MPS without its daemon, and a card in reset, say the same.

**Example.** `CUDA error: all CUDA-capable devices are busy or unavailable`

**Fix.** End the other process, or set the mode back to default, which needs root; asked first.

**Source.** docs.nvidia.com/cuda/cuda-runtime-api (cudaErrorDevicesUnavailable);
NVIDIA/DIGITS#2005.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Finding, Fix

_SIGNS = ("devices-unavailable",)


def check(case: Case) -> Finding | None:
    """One of the messages was printed."""
    if not case.sees(*_SIGNS):
        return None
    return Finding(
        rule="gpu-busy-in-exclusive-mode",
        severity="error",
        problem="The GPU is in exclusive mode and taken, or does not answer.",
        because="another process owns the card, or its mode allows none",
        evidence=case.evidence(*_SIGNS),
        fixes=(
            Fix(
                text="end the process that owns the GPU, or allow several",
                safety="ask",
                commands=(
                    "nvidia-smi -q -d COMPUTE",
                    "sudo nvidia-smi -c DEFAULT",
                ),
                where="host",
                changes="the card's compute mode, until the next start",
                undo="sudo nvidia-smi -c EXCLUSIVE_PROCESS",
            ),
        ),
        confirm=(
            "nvidia-smi -q -d COMPUTE",
            "nvidia-smi",
        ),
    )


RULE = Rule(
    check=check,
    prior=50,
    signatures=(
        signature(
            "devices-unavailable",
            "CUDA-capable devices are busy",
            "CUDA-capable device(s) is/are busy",
            "cudaErrorDevicesUnavailable",
            "CUDA_ERROR_DEVICE_UNAVAILABLE",
        ),
    ),
    explains=("gpu-memory-used-by-other-process",),
)
