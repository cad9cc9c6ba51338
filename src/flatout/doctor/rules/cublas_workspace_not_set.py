"""Deterministic training needs a cuBLAS setting.

**Checks.** torch's error about CUBLAS_WORKSPACE_CONFIG.

**Why it matters.** cuBLAS gives identical results in every run only with a fixed workspace, which
is set by a variable before CUDA starts.

**Example.** `Deterministic behavior was enabled ... set CUBLAS_WORKSPACE_CONFIG=:4096:8`

**Fix.** Set the variable before the program starts; safe.

**Source.** https://docs.nvidia.com/cuda/cublas (results reproducibility)
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """torch asks for the variable."""
    if not case.sees("cublas-workspace-asked"):
        return None
    return Finding(
        rule="cublas-workspace-not-set",
        severity="error",
        problem="Deterministic training needs CUBLAS_WORKSPACE_CONFIG.",
        evidence=case.evidence("cublas-workspace-asked"),
        fixes=(
            Fix(
                text="set it before the program starts",
                safety="safe",
                commands=("export CUBLAS_WORKSPACE_CONFIG=:4096:8",),
                changes="only this shell",
                undo="unset CUBLAS_WORKSPACE_CONFIG",
            ),
        ),
    )


RULE = Rule(
    check=check,
    prior=60,
    signatures=(
        signature(
            "cublas-workspace-asked",
            "CUBLAS_WORKSPACE_CONFIG",
            pattern=r"Deterministic behavior was enabled|not deterministic because it uses CuBLAS"
            r"|you must set.{0,60}CUBLAS_WORKSPACE_CONFIG",
        ),
    ),
)
