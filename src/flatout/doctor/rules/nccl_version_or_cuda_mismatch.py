"""The loaded NCCL library is for another CUDA or framework, or NCCL is missing.

**Checks.** Missing NCCL symbols and libraries, ranks with different NCCL versions, and CUDA errors
that NCCL or its tests report.

**Why it matters.** torch, TensorFlow and JAX each bring the NCCL they were built with. An NCCL from
the system or on LD_LIBRARY_PATH that is older or for another CUDA replaces it.

**Example.** `ImportError: libtorch_cuda.so: undefined symbol: ncclCommRegister`

**Fix.** Remove the other library from LD_LIBRARY_PATH, or install the version that the framework
needs; asks first.

**Source.** pytorch/pytorch#119932; NVIDIA/nccl: init.cc; NVIDIA/nccl-tests.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Certainty, Finding, Fix

_BROKEN = ("nccl-symbol-missing", "nccl-versions-differ")


def check(case: Case) -> Finding | None:
    """NCCL does not match the framework, the other ranks or the driver."""
    is_driver = case.sees("nccl-cuda-failure", "nccl-tests-cuda-failure")
    is_explicit = case.sees("nccl-version-told", "nccl-built-for-cuda")
    others = case.sees("nccl-library-missing", "nccl-unhandled-cuda-error")
    is_beside = case.sees("nccl-in-torch") and case.sees("nccl-package")
    if not case.sees(*_BROKEN) and not is_driver and not others and not is_beside:
        return None
    certainty: Certainty = "likely"
    if case.sees(*_BROKEN) or case.sees("nccl-cuda-failure") and is_explicit:
        certainty = "decided"
    elif not is_driver and not case.sees("nccl-library-missing"):
        certainty = "possible"
    is_harmless = not case.sees(*_BROKEN) and not is_driver and not others
    return Finding(
        rule="nccl-version-or-cuda-mismatch",
        severity="note" if is_harmless else "error",
        certainty=certainty,
        problem="The loaded NCCL library is for another CUDA or framework, or NCCL is missing.",
        because="torch uses its own NCCL; another one in the system has no effect"
        if is_harmless
        else "each framework brings the NCCL it was built with; another one was loaded instead",
        evidence=case.evidence(
            *_BROKEN,
            "nccl-cuda-failure",
            "nccl-tests-cuda-failure",
            "nccl-library-missing",
            "nccl-unhandled-cuda-error",
            "nccl-version-told",
            "nccl-in-torch",
        ),
        fixes=(
            Fix(
                text="start without other NCCL libraries on the loader's path",
                safety="safe",
                commands=("env -u LD_LIBRARY_PATH -u LD_PRELOAD <the same command>",),
                changes="nothing permanently",
            ),
            Fix(
                text="or install the NCCL that this torch was built with",
                safety="ask",
                commands=(
                    "pip show torch | grep -i requires",
                    "pip install --force-reinstall torch",
                ),
                changes="the environment",
            ),
        ),
        confirm=(
            'python -c "import torch; print(torch.version.cuda, torch.cuda.nccl.version())"',
            "ldconfig -p | grep nccl",
            "nvidia-smi",
        ),
    )


RULE = Rule(
    check=check,
    prior=55,
    signatures=(
        signature(
            "nccl-symbol-missing",
            "undefined symbol",
            "symbol lookup error",
            "entry point",
            pattern=r"(?:undefined symbol|symbol lookup error)[^\n]{0,120}\bp?nccl[A-Z]\w+"
            r"|undefined symbol: p?nccl\w+",
        ),
        signature(
            "nccl-versions-differ",
            "Mismatched NCCL version",
            "different NCCL versions",
            "NCCL version mismatch",
            "NCCL library version mismatch",
            "NCCL versions",
            pattern=r"Mismatched NCCL version|NCCL (?:library )?versions?.{0,40}(?:mismatch"
            r"|differ|do not match|not compatible|incompatible)|different NCCL versions",
        ),
        signature(
            "nccl-cuda-failure",
            "Cuda failure",
            "CUDA failure",
            pattern=r"NCCL WARN Cuda failure (?:\d+ )?'(?:CUDA driver version is insufficient"
            r"|the provided PTX was compiled|API call is not supported|invalid device"
            r" function"
            r"|named symbol not found|no kernel image|device kernel image is invalid"
            r"|forward compatibility)",
        ),
        signature(
            "nccl-tests-cuda-failure",
            "Test CUDA failure",
            "Test NCCL failure",
            pattern=r"Test (?:CUDA|NCCL) failure.{0,60}(?:driver version is insufficient"
            r"|unhandled cuda error|unsupported toolchain|no kernel image"
            r"|invalid device function)",
        ),
        signature(
            "nccl-library-missing",
            "libnccl.so.2",
            "libnccl.so",
            "nccl64_2.dll",
            pattern=r"libnccl\.so(?:\.\d[\d.]{0,8})?(?:: cannot open|.{0,40}(?:not found"
            r"|No such file))|ImportError: libnccl|(?:cannot find|could not find"
            r"|unable to load) (?:-l|lib)?nccl\b",
        ),
        signature(
            "nccl-unhandled-cuda-error",
            "unhandled cuda error",
            "ncclUnhandledCudaError",
        ),
        signature(
            "nccl-version-told",
            "NCCL_MAJOR",
            "NCCL version",
            pattern=r"#define NCCL_MAJOR|NCCL version:? \d+\.\d+\.\d+ ?\+ ?cuda\d+",
        ),
        signature(
            "nccl-built-for-cuda",
            "nccl",
            pattern=r"libnccl2?[ =]+\d+\.\d+\.\d+-\d\+cuda\d+\.\d|compiled with CUDA"
            r"|NCCL .{0,20}built for CUDA",
        ),
        signature(
            "nccl-package",
            "libnccl2",
            "nvidia-nccl",
            pattern=r"libnccl2[ =/]|nvidia-nccl-cu\d+",
        ),
        signature(
            "nccl-in-torch",
            "cuda.nccl.version",
        ),
    ),
)
