"""Two OpenMP runtimes are loaded into one process.

**Checks.** OpenMP error 15, and threadpoolctl's warning.

**Why it matters.** torch, NumPy with MKL and others each bring an OpenMP runtime. Two of them in
one process may hang, crash or give wrong results.

**Example.** `OMP: Error #15: Initializing libiomp5md.dll, but found libiomp5md.dll already
initialized.`

**Fix.** Use one source for all packages: a fresh environment with torch and NumPy only from pip, or
only from conda-forge; asks first. KMP_DUPLICATE_LIB_OK hides the message, not the danger.

**Source.** openmp.llvm.org; github.com/joblib/threadpoolctl/blob/master/multiple_openmp.md.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """OpenMP stopped the process, or a warning names two runtimes."""
    if not case.sees("openmp-error-15", "openmp-two-loaded"):
        return None
    return Finding(
        rule="duplicate-openmp-runtime",
        severity="error" if case.sees("openmp-error-15") else "warning",
        problem="Two OpenMP runtimes are loaded into one process.",
        because="packages from pip and conda each brought their own OpenMP",
        evidence=case.evidence("openmp-error-15", "openmp-two-loaded"),
        fixes=(
            Fix(
                text="create a fresh environment with all packages from one source",
                safety="ask",
                commands=("uv venv --python 3.12", "uv pip install torch numpy"),
                changes="a new folder .venv",
                undo="rm -r .venv",
            ),
            Fix(
                text="or in a conda environment, remove MKL's copy",
                safety="ask",
                commands=("conda install -c conda-forge nomkl",),
                changes="the conda environment",
                undo="conda remove nomkl",
            ),
        ),
        confirm=(
            'python -c "import torch, threadpoolctl; print(threadpoolctl.threadpool_info())"',
        ),
    )


RULE = Rule(
    check=check,
    prior=65,
    signatures=(
        signature(
            "openmp-error-15",
            "OMP: Error",
            "multiple copies of the OpenMP runtime",
            "already initialized",
            pattern=r"OMP: Error #15\b|multiple copies of the OpenMP runtime"
            r"|Initializing lib(?:iomp|omp|gomp"
            r"|vcomp)\S{0,20}, but found lib\w{3,8}\S{0,12} already initialized",
        ),
        signature(
            "openmp-two-loaded",
            "loaded at the same time",
            pattern=r"OpenMP.{0,80}loaded at the same time",
        ),
    ),
)
