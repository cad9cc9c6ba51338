"""A system CUDA library is loaded instead of the framework's own.

**Checks.** Symbols that one CUDA library cannot find in another, such as nvJitLink or cuBLASLt. On
the machine: libraries on LD_LIBRARY_PATH in another version than in the wheels.

**Why it matters.** Wheels bring CUDA libraries of one version. A toolkit on LD_LIBRARY_PATH, or
conda's, mixes in libraries of another.

**Example.** `libcusparse.so.12: undefined symbol: __nvJitLinkAddData_12_1, version
libnvJitLink.so.12`

**Fix.** Remove the toolkit from LD_LIBRARY_PATH in this shell; safe.

**Source.** pytorch/pytorch#131312, #111469.
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix
from flatout.schema.machine import Machine

_SIGNS = ("cuda-symbol-missing",)


def check(case: Case) -> Finding | None:
    """One of the messages was printed."""
    if not case.sees(*_SIGNS):
        return None
    return Finding(
        rule="cuda-libs-shadowed-by-ld-library-path",
        severity="error",
        problem=("A system CUDA library is loaded instead of the framework's own."),
        because="the two libraries have different versions",
        evidence=case.evidence(*_SIGNS),
        fixes=(
            Fix(
                text="remove the toolkit from the loader's path",
                safety="safe",
                commands=("unset LD_LIBRARY_PATH",),
                changes="only this shell",
                undo="close the shell",
            ),
        ),
        confirm=(
            "echo $LD_LIBRARY_PATH",
            "python -c 'import torch'",
            "pip list | grep nvidia",
        ),
    )


def _in_facts(machine: Machine) -> Facts:
    """LD_LIBRARY_PATH holds libraries that the environment's wheels also contain."""
    passed = ("libcuda", "libnvidia-ml", "libcudnn")
    wheels = {one.name: one for one in machine.libraries or () if one.found_by == "wheel"}
    shadowing = [
        one
        for one in machine.libraries or ()
        if one.found_by == "LD_LIBRARY_PATH" and one.name in wheels and one.name not in passed
        and one.version != wheels[one.name].version
    ]  # fmt: skip
    return tuple(
        evidence
        for one in shadowing[:3]
        for evidence in fact(
            f"{one.name} {one.version} found before the environment's {wheels[one.name].version}",
            "LD_LIBRARY_PATH",
        )
    )


RULE = Rule(
    check=check,
    prior=60,
    fact_checks=(FactCheck(sign="cuda-symbol-missing", read=_in_facts, severity="warning"),),
    signatures=(
        signature(
            "cuda-symbol-missing",
            "undefined symbol",
            "not defined in file",
            "procedure entry point",
            pattern=r"undefined symbol: ?_{0,2}(?:nvJitLink|cublas|cusparse|cusolver|cufft|"
            r"curand|nvrtc|cupti|cuda[A-Z]|nvtx)\w*|"
            r"symbol \w{1,80},? version lib(?:cublas|cusparse|nvJitLink|cusolver|"
            r"cudart|cufft|nvrtc|cupti)\S* not defined in file|"
            r"version lib(?:nvJitLink|cublas\w*|cusparse|cudart|cupti)\.so",
        ),
    ),
    explains=("extension-abi-mismatch",),
)
