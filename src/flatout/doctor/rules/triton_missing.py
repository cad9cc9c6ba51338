"""Triton is not installed, or is too old for this torch.

**Checks.** Errors of torch.compile, xformers and others that need Triton.

**Why it matters.** Triton comes with torch's CUDA builds on Linux. On Windows it is a separate
package, `triton-windows`.

**Example.** `RuntimeError: Cannot find a working triton installation.`

**Fix.** Install it, or run without torch.compile; asks first.

**Source.** pytorch/pytorch#136361; github.com/woct0rdho/triton-windows.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix

_SIGNS = ("triton-not-found",)


def check(case: Case) -> Finding | None:
    """One of the messages was printed."""
    if not case.sees(*_SIGNS) or case.sees("triton-optional"):
        return None
    return Finding(
        rule="triton-missing",
        severity="error",
        problem="Triton is not installed, or is too old for this torch.",
        evidence=case.evidence(*_SIGNS),
        fixes=(
            Fix(
                text="install Triton for this platform, or disable torch.compile",
                safety="ask",
                commands=("pip install triton-windows",),
                where="powershell",
                changes="adds a package to this environment; on Linux the package is triton",
                undo="pip uninstall triton-windows",
            ),
        ),
        confirm=("pip list | grep -i triton",),
    )


RULE = Rule(
    check=check,
    prior=60,
    signatures=(
        signature(
            "triton-not-found",
            "triton",
            "TritonMissing",
            pattern=r"Cannot find a working triton|No module named '?triton'?(?!\.)|"
            r"TritonMissing|Triton (?:is )?not installed|Triton is not (?:available|"
            r"supported)|requires (?:the )?triton|Please install triton|"
            r"triton.{0,30}not found.{0,20}install",
        ),
        signature(
            "triton-optional",
            "A matching Triton is not available, some optimizations will not be enabled",
        ),
    ),
)
