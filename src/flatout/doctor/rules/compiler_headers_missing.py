"""The compiler cannot find header files of Python or CUDA.

**Checks.** Python.h, CUDA headers and import libraries that gcc, clang, MSVC or TinyCC cannot find.

**Why it matters.** Triton and extensions compile C at run time. Headers come in separate packages,
and embedded Pythons have none.

**Example.** `fatal error: Python.h: No such file or directory`

**Fix.** Install the headers of this Python, or the toolkit; asks for root.

**Source.** sgl-project/sglang#1117; docs.python.org, C API.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix

_SIGNS = ("header-missing",)


def check(case: Case) -> Finding | None:
    """One of the messages was printed."""
    if not case.sees(*_SIGNS):
        return None
    return Finding(
        rule="compiler-headers-missing",
        severity="error",
        problem="The compiler cannot find header files of Python or CUDA.",
        because="header files come in separate packages",
        evidence=case.evidence(*_SIGNS),
        fixes=(
            Fix(
                text=(
                    "install this Python's headers (python3-dev), or the CUDA toolkit "
                    "for CUDA's headers"
                ),
                safety="ask",
                commands=("sudo apt-get install python3-dev",),
                where="linux",
                changes="installs a system package",
                undo="sudo apt-get remove python3-dev",
            ),
        ),
        confirm=("python -c \"import sysconfig; print(sysconfig.get_path('include'))\"",),
    )


RULE = Rule(
    check=check,
    prior=60,
    signatures=(
        signature(
            "header-missing",
            "Python.h",
            "pyconfig.h",
            "cuda.h",
            "cuda_runtime.h",
            "cuda_runtime_api.h",
            "cublas_v2.h",
            "cudnn.h",
            "cusparse.h",
            "cusolverDn.h",
            "nccl.h",
            "cuda_fp16.h",
            "cudnn_version.h",
            "nv/target",
            "patchlevel.h",
            "curand.h",
            "cufft.h",
            "thrust/complex.h",
            "python3",
            "LNK1104",
            "LNK1181",
            pattern=r"(?:Python|pyconfig|patchlevel|cuda\w{0,16}|cublas\w{0,6}|"
            r"cudnn\w{0,10}|cusparse|cusolver\w{0,4}|nccl|curand\w{0,10}|cufft|"
            r"nv/target|thrust/\w{1,20})(?:\.h)?['\\x22>]?:? ?(?:No such file|"
            r"file not found|not found|: No such)|(?:include file|"
            r"open include file:?|cannot find) ['\\x22<](?:Python|cuda\w*|cublas\w*|"
            r"cudnn\w*)\.h|'(?:Python|cuda\w*)\.h' file not found|"
            r"cannot find -lpython3|cannot open (?:input )?file '(?:python3\d*|cuda|"
            r"cudart)\.lib'",
        ),
    ),
    explains=("c-compiler-missing",),
)
