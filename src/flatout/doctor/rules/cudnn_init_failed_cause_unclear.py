"""cuDNN failed to initialize; the message does not say why.

**Checks.** CUDNN_STATUS_NOT_INITIALIZED, INTERNAL_ERROR and similar errors from torch, TensorFlow
and JAX.

**Why it matters.** Usually the GPU's memory is full when cuDNN allocates, or a different cuDNN is
loaded.

**Example.** `Could not create cudnn handle: CUDNN_STATUS_INTERNAL_ERROR`

**Fix.** Leave memory free: stop other programs on the GPU or use smaller batches; let TensorFlow or
JAX allocate on demand, in this shell; safe.

**Source.** docs.nvidia.com/deeplearning/cudnn; tensorflow/tensorflow#24496.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix

_SIGNS = ("cudnn-not-started",)


def check(case: Case) -> Finding | None:
    """One of the messages was printed."""
    if not case.sees(*_SIGNS):
        return None
    # TensorFlow and JAX allocate all memory at startup unless a variable prevents it.
    growing = {
        "cudnn-of-tensorflow": "TF_FORCE_GPU_ALLOW_GROWTH=true",
        "cudnn-of-jax": "XLA_PYTHON_CLIENT_PREALLOCATE=false",
    }
    settings = [setting for id, setting in growing.items() if case.sees(id)]
    fix = Fix(
        text=(
            "leave memory free for cuDNN: stop other programs that use the GPU, or use a "
            "smaller batch"
        ),
    )
    if settings:
        fix = Fix(
            text="leave memory free for cuDNN",
            safety="safe",
            commands=(f"export {' '.join(settings)}",),
            changes="only this shell",
            undo="close the shell",
        )
    return Finding(
        rule="cudnn-init-failed-cause-unclear",
        severity="error",
        certainty="likely",
        problem="cuDNN failed to initialize; the message does not say why.",
        evidence=case.evidence(*_SIGNS),
        fixes=(fix,),
        confirm=(
            "nvidia-smi",
            "pip list | grep -i cudnn",
        ),
    )


RULE = Rule(
    check=check,
    prior=45,
    signatures=(
        signature(
            "cudnn-of-tensorflow",
            "Failed to get convolution algorithm",
            "tensorflow",
            "Could not create cudnn handle",
            "Loaded runtime CuDNN library",
        ),
        signature("cudnn-of-jax", "jaxlib", "XlaRuntimeError", "DNN library initialization failed"),
        signature(
            "cudnn-not-started",
            "CUDNN_STATUS_NOT_INITIALIZED",
            "CUDNN_STATUS_INTERNAL_ERROR",
            "CUDNN_STATUS_EXECUTION_FAILED",
            "CUDNN_STATUS_MAPPING_ERROR",
            "Failed to get convolution algorithm",
            "Unable to find a valid cuDNN algorithm",
            "DNN library initialization failed",
            "DNN library is not found",
            "cuDNN Frontend error",
            "Unable to find an engine to execute",
            "unable to find an engine",
        ),
    ),
)
