"""A class label or token index lies outside of its range.

**Checks.** Assertions of loss, embedding and gather kernels, and what the CPU, TensorFlow and
Paddle say of the same.

**Why it matters.** The GPU finds it late, in a kernel, and after that every call fails: the line
that is blamed is often not the one.

**Example.** `Assertion 't >= 0 && t < n_classes' failed.`

**Fix.** Compare the labels with the number of classes, the tokens with the embedding; run once on
the CPU, which names the place.

**Source.** pytorch/pytorch:aten/src/ATen/native/cuda/NLLLoss2d.cu; milesial/Pytorch-UNet#258.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Certainty, Finding, Fix

_TELLING = ("index-assertion",)
_USUAL = ("device-assert",)
_FITTING = ("cublas-not-started",)


def check(case: Case) -> Finding | None:
    """One of the messages was printed."""
    if not case.sees(*_TELLING, *_USUAL, *_FITTING) or case.sees("loss-range-assertion"):
        return None
    certainty: Certainty = "possible"
    if case.sees(*_USUAL):
        certainty = "likely"
    if case.sees(*_TELLING):
        certainty = "decided"
    return Finding(
        rule="label-index-out-of-range",
        severity="error",
        certainty=certainty,
        problem="A class label or token index lies outside of its range.",
        evidence=case.evidence(*_TELLING, *_USUAL, *_FITTING),
        fixes=(
            Fix(
                text=(
                    "compare the smallest and largest label or token with the number of"
                    " classes or the size of the vocabulary"
                ),
                safety="safe",
                commands=("export CUDA_LAUNCH_BLOCKING=1",),
                changes="this shell alone: the line that fails is named",
                undo="close the shell",
            ),
        ),
        confirm=("CUDA_LAUNCH_BLOCKING=1 python <script>",),
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
            "is out of bounds",
            "index out of range in self",
            "outside the valid range",
            "Label value is out of range",
            "label should not be out of bound",
            "The value of label expected",
            "is not in [0",
            "num_embeddings",
            "lossClass",
            "cur_target",
            "idx_dim",
            "ClassNLLCriterion",
            "vectorized_gather_kernel",
            "index_size",
            pattern=r"Assertion.{0,80}(?:n_classes|srcSelectDimSize|index out of bounds|"
            r"num_embeddings|idx_dim|index_size|label|lossClass|ind_dim_size|"
            r"srcIndex)|IndexError: Target -?\d+ is out of bounds|"
            r"index out of range in self|label value of -?\d+ which is outside|"
            r"Label value is out of range|label should not be out of bound|"
            r"value of label expected >=|ind(?:ices|"
            r"ex)\[[\d,]{1,12}\] = -?\d+ is not in \[0",
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
