"""Paddle cannot load cuDNN or a CUDA library it depends on.

**Checks.** Errors of Paddle's library loader, and a cuDNN that does not load in a program that
mentions Paddle.

**Why it matters.** Paddle 2 searches for cuDNN in the system, not in torch's package.

**Example.** `The third-party dynamic library (libcudnn.so) that Paddle depends on is not
configured correctly.`

**Fix.** Install cuDNN for this Paddle's CUDA version and add its folder to LD_LIBRARY_PATH; asks
first.

**Source.** PaddlePaddle/Paddle#49106, #51060; www.paddlepaddle.org.cn/install/quick.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix

_SIGNS = (
    "paddle-library-missing",
    "cudnn-dependency-missing",
)


def check(case: Case) -> Finding | None:
    """One of the messages was printed."""
    if not case.sees(*_SIGNS):
        return None
    if not case.sees("paddle-named", "paddle-library-missing"):
        return None
    return Finding(
        rule="paddle-cudnn-not-found",
        severity="error",
        problem="Paddle cannot load cuDNN or a CUDA library it depends on.",
        evidence=case.evidence(*_SIGNS),
        fixes=(
            Fix(
                text=(
                    "install the cuDNN and CUDA libraries that this Paddle build needs,"
                    " and add them to the loader's path"
                ),
                safety="ask",
                commands=("pip install nvidia-cudnn-cu12 nvidia-cublas-cu12",),
                changes="adds packages to this environment",
            ),
        ),
        confirm=(
            (
                'python -c "import paddle; paddle.utils.run_check(); '
                'print(paddle.version.cuda(), paddle.version.cudnn())"'
            ),
            "ldconfig -p | grep cudnn",
        ),
    )


RULE = Rule(
    check=check,
    prior=70,
    signatures=(
        signature(
            "paddle-library-missing",
            "that Paddle depends on",
            "Cannot load cudnn shared library",
            "Cannot load cublas shared library",
            "Cannot load cusolver",
            "Can not load libcudnn",
        ),
        signature(
            "cudnn-dependency-missing",
            "Could not load library libcudnn",
            "libcublas.so",
            "libcudnn.so",
            "cudnn64",
            pattern=r"Could not load library libcudnn|lib(?:cublas|"
            r"cudnn)\.so[\d.]{0,6}: cannot open",
        ),
        signature(
            "paddle-named", "paddle", "PaddlePaddle", "gpu_resources.cc", "run_check", "paddleocr"
        ),
    ),
    explains=(
        "cudnn-library-missing",
        "cuda-runtime-library-missing",
    ),
)
