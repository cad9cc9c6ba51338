"""A class label or token index is out of range.

**Checks.** Assertions in loss, embedding and gather kernels, and the corresponding errors on the
CPU and of TensorFlow and Paddle.

**Why it matters.** The GPU detects it late, in a kernel, and every later call fails: the reported
line is often not the faulty one.

**Example.** `Assertion 't >= 0 && t < n_classes' failed.`

**Fix.** Compare the labels with the number of classes, and the tokens with the embedding's size. On
a GPU, run once on the CPU, or with CUDA_LAUNCH_BLOCKING=1: both show the faulty line.

**Source.** pytorch/pytorch:aten/src/ATen/native/cuda/NLLLoss2d.cu; milesial/Pytorch-UNet#258.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Certainty, Finding, Fix

_ON_GPU = ("index-assertion",)
_ON_CPU = ("index-error",)
_DECISIVE = (*_ON_GPU, *_ON_CPU)
_AMBIGUOUS = ("device-assert",)
_COMPATIBLE = ("cublas-not-started",)


def check(case: Case) -> Finding | None:
    """One of the messages was printed."""
    if not case.sees(*_DECISIVE, *_AMBIGUOUS, *_COMPATIBLE) or case.sees("loss-range-assertion"):
        return None
    certainty: Certainty = "possible"
    if case.sees(*_AMBIGUOUS):
        certainty = "likely"
    if case.sees(*_DECISIVE):
        certainty = "decided"
    # The CPU reports the faulty line directly, so no variable needs to be set.
    is_named = case.sees(*_ON_CPU) and not case.sees(*_ON_GPU, *_AMBIGUOUS, *_COMPATIBLE)
    compare = (
        "compare the smallest and largest label or token with the number of classes or the size of "
        "the vocabulary"
    )
    on_gpu = Fix(
        text=compare,
        safety="safe",
        commands=("export CUDA_LAUNCH_BLOCKING=1",),
        changes="only this shell, in which errors show the faulty line",
        undo="close the shell",
    )
    on_cpu = Fix(text=f"{compare}: classes count from 0")
    return Finding(
        rule="label-index-out-of-range",
        severity="error",
        certainty=certainty,
        problem="A class label or token index is out of range.",
        evidence=case.evidence(*_DECISIVE, *_AMBIGUOUS, *_COMPATIBLE),
        fixes=(on_cpu if is_named else on_gpu,),
        confirm=() if is_named else ("CUDA_LAUNCH_BLOCKING=1 python <script>",),
    )


RULE = Rule(
    check=check,
    prior=60,
    signatures=(
        signature(
            "index-assertion",
            "n_classes",
            "srcSelectDimSize",
            "index out of bounds",
            "label should not be out of bound",
            "The value of label expected",
            "num_embeddings",
            "lossClass",
            "cur_target",
            "idx_dim",
            "ClassNLLCriterion",
            "vectorized_gather_kernel",
            "index_size",
            pattern=r"Assertion.{0,80}(?:n_classes|srcSelectDimSize|index out of bounds|"
            r"num_embeddings|idx_dim|index_size|label|lossClass|ind_dim_size|"
            r"srcIndex)",
        ),
        signature(
            "index-error",
            "is out of bounds",
            "index out of range in self",
            "outside the valid range",
            "Label value is out of range",
            "label should not be out of bound",
            "The value of label expected",
            "is not in [0",
            pattern=r"^(?!.*Assertion).*(?:IndexError: Target -?\d+ is out of bounds|"
            r"index out of range in self|label value of -?\d+ which is outside|"
            r"Label value is out of range|label should not be out of bound|"
            r"value of label expected >=|ind(?:ices|"
            r"ex)\[[\d,]{1,12}\] = -?\d+ is not in \[0)",
        ),
        signature(
            "device-assert", "device-side assert triggered", "cudaErrorAssert", "CUDA_ERROR_ASSERT"
        ),
    ),
    explains=(
        "cublas-init-failed-cause-unclear",
        "cuda-illegal-memory-access",
        "cudnn-init-failed-cause-unclear",
    ),
)
