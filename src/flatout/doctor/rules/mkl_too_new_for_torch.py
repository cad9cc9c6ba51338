"""MKL is newer than the one conda's torch was linked against.

**Checks.** An MKL symbol that libtorch cannot find.

**Why it matters.** MKL 2024.1 dropped a symbol that torch's conda builds up to 2.3 use.

**Example.** `libtorch_cpu.so: undefined symbol: iJIT_NotifyEvent`

**Fix.** Install MKL 2024.0; asks first.

**Source.** pytorch/pytorch#123097.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix

_SIGNS = ("mkl-symbol-missing",)


def check(case: Case) -> Finding | None:
    """One of the messages was printed."""
    if not case.sees(*_SIGNS):
        return None
    return Finding(
        rule="mkl-too-new-for-torch",
        severity="error",
        problem="MKL is newer than the one conda's torch was linked against.",
        evidence=case.evidence(*_SIGNS),
        fixes=(
            Fix(
                text="install an older MKL",
                safety="ask",
                commands=("conda install 'mkl<2024.1'",),
                changes="replaces MKL in this environment",
            ),
        ),
    )


RULE = Rule(
    check=check,
    prior=70,
    signatures=(
        signature(
            "mkl-symbol-missing",
            "iJIT_NotifyEvent",
            "iJIT_IsProfilingActive",
            "iJIT_GetNewMethodID",
        ),
    ),
    explains=("extension-abi-mismatch",),
)
