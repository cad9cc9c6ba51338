"""ONNX Runtime cannot load its CUDA provider and falls back to the CPU.

**Checks.** ONNX Runtime's messages about its CUDA and TensorRT providers.

**Why it matters.** The provider needs a specific major version of CUDA and cuDNN, which
onnxruntime-gpu does not include.

**Example.** `Failed to create CUDAExecutionProvider. Require cuDNN 9.* and CUDA 12.*`

**Fix.** Install the CUDA and cuDNN wheels in the same environment; asks first.

**Source.** microsoft/onnxruntime#11826; onnxruntime.ai, CUDA execution provider,
requirements.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix

_SIGNS = ("onnx-provider-failed",)


def check(case: Case) -> Finding | None:
    """One of the messages was printed."""
    if not case.sees(*_SIGNS):
        return None
    return Finding(
        rule="onnxruntime-cuda-libraries-not-found",
        severity="warning",
        problem="ONNX Runtime cannot load its CUDA provider and falls back to the CPU.",
        evidence=case.evidence(*_SIGNS),
        fixes=(
            Fix(
                text="install CUDA and cuDNN for it, and load them before creating the session",
                safety="ask",
                commands=("pip install 'onnxruntime-gpu[cuda,cudnn]'",),
                changes="adds packages to this environment",
            ),
        ),
        confirm=(
            (
                'python -c "import onnxruntime; onnxruntime.preload_dlls(); '
                'print(onnxruntime.get_available_providers())"'
            ),
        ),
    )


RULE = Rule(
    check=check,
    prior=60,
    signatures=(
        signature(
            "onnx-provider-failed",
            "Failed to create CUDAExecutionProvider",
            "onnxruntime_providers_cuda",
            "TryGetProviderInfo_CUDA",
            "Failed to load library libonnxruntime_providers_cuda.so",
        ),
    ),
    explains=(
        "windows-missing-runtime-dll",
        "cuda-runtime-library-missing",
        "cudnn-library-missing",
    ),
)
