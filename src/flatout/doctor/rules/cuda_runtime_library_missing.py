"""A CUDA library that the program needs was not found.

**Checks.** libcudart, libcublas, libnvrtc and similar libraries that torch, CuPy, Numba and other
programs cannot open.

**Why it matters.** Programs without bundled CUDA libraries need a toolkit, or NVIDIA's wheels, of
the major version in the file name.

**Example.** `ImportError: libcublas.so.12: cannot open shared object file: No such file or
directory`

**Fix.** Install the package of that library and version in this environment; asks first.

**Source.** docs.cupy.dev/en/stable/install.html; pytorch/pytorch#88882.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix

_SIGNS = ("cuda-library-unopened",)


def check(case: Case) -> Finding | None:
    """One of the messages was printed."""
    if not case.sees(*_SIGNS) or case.sees("torch-symbol-missing", "extension-needs-other-cuda"):
        return None
    return Finding(
        rule="cuda-runtime-library-missing",
        severity="error",
        problem="A CUDA library that the program needs was not found.",
        evidence=case.evidence(*_SIGNS),
        fixes=(
            Fix(
                text=("install NVIDIA's wheel for that library, or the toolkit of that version"),
                safety="ask",
                commands=("pip install nvidia-cuda-runtime-cu12 nvidia-cublas-cu12",),
                changes="adds packages to this environment",
            ),
        ),
        confirm=(
            "ldconfig -p | grep -E 'cudart|cublas'",
            "pip list | grep nvidia",
        ),
    )


RULE = Rule(
    check=check,
    prior=35,
    signatures=(
        signature(
            "cuda-library-unopened",
            "libcudart",
            "libcublas",
            "libcublasLt",
            "libnvrtc",
            "libcufft",
            "libcurand",
            "libcusparse",
            "libcusolver",
            "libcupti",
            "libnvJitLink",
            "libnvToolsExt",
            "libcusparseLt",
            "libcufile",
            "libnvrtc-builtins",
            "nvrtc-builtins",
            "nvrtc",
            pattern=r"^(?!.*(?:dso_loader|dynamic_loader|tensorflow|Paddle|bitsandbytes|"
            r"onnxruntime|dlerror|Could not load library)).{0,400}\blib(?:cudart|"
            r"cublas|cublasLt|nvrtc|cufft|curand|cusparse|cusparseLt|cusolver|cupti|"
            r"nvJitLink|nvToolsExt|"
            r"cufile)(?:-builtins)?\.so[\d.]{0,10}: cannot open|"
            r"failed to open (?:lib)?nvrtc-builtins|CuPy failed to load lib\w+\.so",
        ),
    ),
)
