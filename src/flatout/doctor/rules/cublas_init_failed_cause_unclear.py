"""cuBLAS failed to initialize; the message does not say why.

**Checks.** CUBLAS_STATUS_NOT_INITIALIZED and similar errors from torch, TensorFlow and others.

**Why it matters.** Usually the GPU's memory is full when the handle is created. An out-of-range
index in an earlier kernel, or a different cuBLAS being loaded, produces the same message.

**Example.** `CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling 'cublasCreate(handle)'`

**Fix.** Run once with CUDA_LAUNCH_BLOCKING=1 and a small batch; safe.

**Source.** docs.nvidia.com/cuda/cublas, status codes; OpenBMB/VisCPM#3; SkyworkAI/Skywork#38.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix

_SIGNS = ("cublas-not-started",)


def check(case: Case) -> Finding | None:
    """One of the messages was printed."""
    if not case.sees(*_SIGNS):
        return None
    return Finding(
        rule="cublas-init-failed-cause-unclear",
        severity="error",
        certainty="likely",
        problem="cuBLAS failed to initialize; the message does not say why.",
        evidence=case.evidence(*_SIGNS),
        fixes=(
            Fix(
                text="find the call that fails, and check whether a small batch works",
                safety="safe",
                commands=("export CUDA_LAUNCH_BLOCKING=1",),
                changes="only this shell",
                undo="close the shell",
            ),
        ),
        confirm=(
            "nvidia-smi",
            "CUDA_LAUNCH_BLOCKING=1 python <script>",
        ),
    )


RULE = Rule(
    check=check,
    prior=60,
    signatures=(
        signature(
            "cublas-not-started",
            "CUBLAS_STATUS_NOT_INITIALIZED",
            "failed to create cublas handle",
            "create cublas handle",
            "Blas xGEMM launch failed",
            "Blas GEMM launch failed",
            "CUBLAS_STATUS_EXECUTION_FAILED",
            "CUBLAS_STATUS_INTERNAL_ERROR",
            "CUBLAS_STATUS_INVALID_VALUE",
            "failed to run cuBLAS routine",
            "no BLAS support",
            "CUBLAS_STATUS_ALLOC_FAILED",
            "CUBLAS_STATUS_NOT_SUPPORTED",
        ),
    ),
)
