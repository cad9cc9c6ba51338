"""The GPU is in use in exclusive mode, or does not respond.

**Checks.** CUDA error 46, devices busy or unavailable.

**Why it matters.** In compute mode Exclusive_Process, only one process may use a card; a second one
fails at its first call. MPS without its daemon, and a card being reset, give the same error.

**Example.** `CUDA error: all CUDA-capable devices are busy or unavailable`

**Fix.** Stop the other process, or reset the mode to default, which needs root; asks first.

**Source.** docs.nvidia.com/cuda/cuda-runtime-api (cudaErrorDevicesUnavailable);
NVIDIA/DIGITS#2005.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix

_SIGNS = ("devices-unavailable",)


def check(case: Case) -> Finding | None:
    """One of the messages was printed."""
    if not case.sees(*_SIGNS):
        return None
    return Finding(
        rule="gpu-busy-in-exclusive-mode",
        severity="error",
        problem="The GPU is in use in exclusive mode, or does not respond.",
        because="another process owns the card, or its compute mode prohibits all",
        evidence=case.evidence(*_SIGNS),
        fixes=(
            Fix(
                text="stop the process that owns the GPU, or allow several processes",
                safety="ask",
                commands=(
                    "nvidia-smi -q -d COMPUTE",
                    "sudo nvidia-smi -c DEFAULT",
                ),
                where="host",
                changes="the card's compute mode, until the next boot",
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
