"""cuDNN could not be started; the message does not say why.

**Checks.** CUDNN_STATUS_NOT_INITIALIZED, INTERNAL_ERROR and their like from torch, TensorFlow and
JAX.

**Why it matters.** Mostly the GPU's memory is full when cuDNN asks for its own, or another cuDNN
is loaded.

**Example.** `Could not create cudnn handle: CUDNN_STATUS_INTERNAL_ERROR`

**Fix.** Leave memory free: let TensorFlow or JAX grow, in this shell; safe.

**Source.** docs.nvidia.com/deeplearning/cudnn; tensorflow/tensorflow#24496.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Finding, Fix

_SIGNS = ("cudnn-not-started",)


def check(case: Case) -> Finding | None:
    """One of the messages was printed."""
    if not case.sees(*_SIGNS):
        return None
    return Finding(
        rule="cudnn-init-failed-cause-unclear",
        severity="error",
        certainty="likely",
        problem="cuDNN could not be started; the message does not say why.",
        evidence=case.evidence(*_SIGNS),
        fixes=(
            Fix(
                text="leave memory free for cuDNN",
                safety="safe",
                commands=(
                    ("export TF_FORCE_GPU_ALLOW_GROWTH=true XLA_PYTHON_CLIENT_PREALLOCATE=false"),
                ),
                changes="this shell alone",
                undo="close the shell",
            ),
        ),
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
