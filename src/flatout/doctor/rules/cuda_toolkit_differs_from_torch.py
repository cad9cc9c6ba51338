"""The CUDA toolkit is of another version than the one that torch was built with.

**Checks.** torch's check before it builds an extension.

**Why it matters.** An extension must be compiled with the major version of CUDA that torch was
built with.

**Example.** `The detected CUDA version (12.4) mismatches the version that was used to compile
PyTorch (11.8).`

**Fix.** The toolkit of torch's version, named by CUDA_HOME; or a torch for this toolkit; asked
first.

**Source.** pytorch/pytorch: torch/utils/cpp_extension.py.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Finding, Fix


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


RULE = Rule(
    check=check,
    prior=60,
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
