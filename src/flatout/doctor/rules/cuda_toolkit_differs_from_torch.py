"""The CUDA toolkit's version differs from the one torch was built with.

**Checks.** torch's check before it builds an extension. On the machine: the first nvcc on PATH
against torch's build; reported as a note.

**Why it matters.** An extension must be compiled with the same CUDA major version as torch.

**Example.** `The detected CUDA version (12.4) mismatches the version that was used to compile
PyTorch (11.8).`

**Fix.** Set CUDA_HOME to a toolkit of torch's version, or install a torch for this toolkit; asks
first.

**Source.** pytorch/pytorch: torch/utils/cpp_extension.py.
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact, version
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix
from flatout.schema.machine import Machine


def check(case: Case) -> Finding | None:
    """torch's check before it builds an extension."""
    if not case.sees("cuda-version-differs"):
        return None
    return Finding(
        rule="cuda-toolkit-differs-from-torch",
        severity="error",
        problem="The CUDA toolkit's version differs from the one torch was built with.",
        because="CUDA_HOME, or nvcc on PATH, points to another version",
        evidence=case.evidence("cuda-version-differs"),
        fixes=(
            Fix(
                text="use the toolkit of torch's version",
                safety="safe",
                commands=(
                    'python -c "import torch; print(torch.version.cuda)"',
                    "export CUDA_HOME=/usr/local/cuda-<version>",
                ),
                changes="environment variables of this shell",
                undo="unset CUDA_HOME",
            ),
        ),
    )


def _in_facts(machine: Machine) -> Facts:
    """nvcc and torch's CUDA differ in major version, which matters only for compiling."""
    torch = machine.framework("torch")
    first = next((one for one in machine.toolkits or () if one.is_first), None)
    if (
        torch is None
        or first is None
        or not first.version
        or not (torch.build or "").startswith("cu")
    ):
        return ()
    if str(version(first.version)[0]) == (torch.build or "")[2:4]:
        return ()
    return (
        *fact(f"nvcc of CUDA {first.version} is first on PATH", "PATH"),
        *fact(f"torch {torch.version} ({torch.build})", "metadata"),
    )


RULE = Rule(
    check=check,
    prior=60,
    fact_checks=(
        FactCheck(sign="cuda-version-differs", read=_in_facts, severity="note", certainty="likely"),
    ),
    signatures=(
        signature(
            "cuda-version-differs",
            "mismatches the version that was used to compile",
            "Cuda extensions are being compiled with a version of Cuda that does not match",
            pattern=r"detected CUDA version \(?[\d.]+\)? mismatches"
            r"|version of Cuda that does not match the version used to compile",
        ),
    ),
)
