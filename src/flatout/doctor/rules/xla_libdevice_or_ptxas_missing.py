"""XLA cannot find libdevice or ptxas.

**Checks.** Errors of TensorFlow and JAX when they compile for the GPU and a CUDA toolkit file is
missing.

**Why it matters.** XLA needs `libdevice.10.bc` and `ptxas` from a toolkit, which drivers and many
wheels do not include.

**Example.** `libdevice not found at ./libdevice.10.bc`

**Fix.** Install nvcc's wheel and set its folder; asks first.

**Source.** tensorflow.org/install/pip; conda-forge/tensorflow-feedstock#420.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix

_SIGNS = ("libdevice-missing",)


def check(case: Case) -> Finding | None:
    """One of the messages was printed."""
    if not case.sees(*_SIGNS):
        return None
    return Finding(
        rule="xla-libdevice-or-ptxas-missing",
        severity="error" if case.sees("libdevice-needed") else "warning",
        problem="XLA cannot find libdevice or ptxas.",
        evidence=case.evidence(*_SIGNS),
        fixes=(
            Fix(
                text="install nvcc's files and set their folder for XLA",
                safety="ask",
                commands=(
                    "pip install nvidia-cuda-nvcc-cu12",
                    (
                        "export XLA_FLAGS=--xla_gpu_cuda_data_dir=$(python -c 'import "
                        "nvidia.cuda_nvcc; print(nvidia.cuda_nvcc.__path__[0])')"
                    ),
                ),
                changes="adds a package to this environment; only this shell finds it",
                undo="pip uninstall nvidia-cuda-nvcc-cu12",
            ),
        ),
        confirm=(
            "which ptxas",
            "find / -name 'libdevice.10.bc' 2>/dev/null",
        ),
    )


RULE = Rule(
    check=check,
    prior=60,
    signatures=(
        signature(
            "libdevice-missing",
            "libdevice",
            "suitable version of ptxas",
            "find ptxas",
            "ptxas binary",
            "ptxas.exe",
            "ptxas not found",
            "No PTX compilation provider",
            "invoke ptxas",
            pattern=r"Can't find libdevice|libdevice not found|"
            r"libdevice is required by this|find a suitable version of ptxas|"
            r"(?:Can't|Couldn't|Could not|Unable to|cannot) find (?:valid )?ptxas|"
            r"No PTX compilation provider|Couldn't invoke ptxas|"
            r"ptxas binary .{0,80}not found|\bptxas not found",
        ),
        signature(
            "libdevice-needed",
            "INTERNAL",
            "FAILED_PRECONDITION",
            "libdevice not found",
            "libdevice is required",
            "ptxas not found",
            pattern=r"Not ?found: .{0,20}ptxas"
            r"|(?:INTERNAL|FAILED_PRECONDITION)\b.{0,60}(?:libdevice|ptxas|PTX)|"
            r"libdevice not found|libdevice is required|InternalError",
        ),
    ),
)
