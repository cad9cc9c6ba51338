"""The installed ONNX Runtime is the CPU build.

**Checks.** Requested providers that are not in the list of available ones.

**Why it matters.** `onnxruntime` and `onnxruntime-gpu` install the same module: with both, the one
installed last wins.

**Example.** `Specified provider 'CUDAExecutionProvider' is not in available provider names.`

**Fix.** Remove both and install onnxruntime-gpu; asks first.

**Source.** microsoft/onnxruntime#7748, #26996; onnxruntime.ai, install.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix

_SIGNS = ("onnx-provider-absent",)


def check(case: Case) -> Finding | None:
    """One of the messages was printed."""
    if not case.sees(*_SIGNS):
        return None
    return Finding(
        rule="onnxruntime-cpu-only-build",
        severity="warning",
        problem="The installed ONNX Runtime is the CPU build.",
        evidence=case.evidence(*_SIGNS),
        fixes=(
            Fix(
                text="remove both packages and install the GPU package",
                safety="ask",
                commands=(
                    "pip uninstall onnxruntime onnxruntime-gpu",
                    "pip install onnxruntime-gpu",
                ),
                changes="replaces ONNX Runtime in this environment",
            ),
        ),
        confirm=("pip list | grep -i onnx",),
    )


RULE = Rule(
    check=check,
    prior=60,
    signatures=(
        signature(
            "onnx-provider-absent",
            "is not in available provider",
            pattern=r"(?:CUDA|"
            r"Tensorrt)ExecutionProvider.{0,4} is not in available provider\s{1,4}names",
            lines=2,
        ),
    ),
)
