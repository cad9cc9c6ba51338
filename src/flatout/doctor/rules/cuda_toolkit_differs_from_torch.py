"""The CUDA toolkit is of another version than the one that torch was built with.

**Checks.** torch's check before it builds an extension. On the machine: the nvcc that is first on
PATH, and torch's build; a note.

**Why it matters.** An extension must be compiled with the major version of CUDA that torch was
built with.

**Example.** `The detected CUDA version (12.4) mismatches the version that was used to compile
PyTorch (11.8).`

**Fix.** The toolkit of torch's version, named by CUDA_HOME; or a torch for this toolkit; asked
first.

**Source.** pytorch/pytorch: torch/utils/cpp_extension.py.
"""

from __future__ import annotations

from flatout.doctor.reading import Facts, Reading, fact, version
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Finding, Fix
from flatout.nouns.machine import Machine


def check(case: Case) -> Finding | None:
    """torch's check before it builds an extension."""
    if not case.sees("cuda-version-differs"):
        return None
    return Finding(
        rule="cuda-toolkit-differs-from-torch",
        severity="error",
        problem="The CUDA toolkit is of another version than the one that torch was built with.",
        because="CUDA_HOME, or nvcc on PATH, is of another version",
        evidence=case.evidence("cuda-version-differs"),
        fixes=(
            Fix(
                text="point to the toolkit of torch's version",
                safety="safe",
                commands=(
                    'python -c "import torch; print(torch.version.cuda)"',
                    "export CUDA_HOME=/usr/local/cuda-<version>",
                ),
                changes="the environment of this shell",
                undo="unset CUDA_HOME",
            ),
        ),
    )


def _in_facts(machine: Machine) -> Facts:
    """nvcc is of another major version than torch's CUDA: it matters to who compiles."""
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
    readings=(
        Reading(sign="cuda-version-differs", read=_in_facts, severity="note", certainty="likely"),
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
