"""The CUDA stub libcuda is loaded instead of the driver's.

**Checks.** CUDA error 34, the stubs' own message, and their folder on the loader's path. On the
machine: the loader finds a libcuda in a `stubs` folder first.

**Why it matters.** The toolkit's `stubs` folder holds libraries to link against on machines without
a driver. They do nothing else, and hide the driver's libraries if found first.

**Example.** `failed call to cuInit: UNKNOWN ERROR (34)`

**Fix.** Remove `stubs` from LD_LIBRARY_PATH and /etc/ld.so.conf.d; safe for this shell.

**Source.** https://docs.nvidia.com/cuda/cuda-driver-api, CUDA_ERROR_STUB_LIBRARY
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Certainty, Finding, Fix
from flatout.schema.machine import Machine

_LOADED = ("stub-told", "cuda-error-34")
_FAILURES = ("cuda-no-device", "cuinit-failed", "cuda-unknown-error", "cuda-driver-insufficient")


def check(case: Case) -> Finding | None:
    """A stub reports it, or its folder is on the path and CUDA fails."""
    is_on_path = case.sees("stubs-on-path")
    if not case.sees(*_LOADED) and not is_on_path:
        return None
    has_failed = case.sees(*_LOADED, *_FAILURES)
    certainty: Certainty = "decided" if case.sees("stub-told") or is_on_path else "likely"
    if not has_failed:
        certainty = "possible"
    return Finding(
        rule="cuda-stub-library-loaded",
        severity="error" if has_failed else "warning",
        certainty=certainty,
        problem="The CUDA stub libcuda is loaded instead of the driver's.",
        evidence=case.evidence(*_LOADED, "stubs-on-path", "cuinit-failed"),
        fixes=(
            Fix(
                text=(
                    "remove the `stubs` folder from the loader's path; in a Dockerfile, set"
                    " it only for the step that links"
                ),
                safety="safe",
                commands=(
                    "export LD_LIBRARY_PATH=$(printenv LD_LIBRARY_PATH | tr : '\\n' | "
                    "grep -v stubs | paste -sd:)",
                ),
                where="container" if case.is_container else "here",
                changes="only this shell",
            ),
        ),
        confirm=("ldconfig -p | grep libcuda", "printenv LD_LIBRARY_PATH"),
    )


def _in_facts(machine: Machine) -> Facts:
    """The loader finds a stub first."""
    first = next((one for one in machine.libraries or () if one.name == "libcuda"), None)
    if first is None or not first.is_stub:
        return ()
    return fact(f"the loader finds {first.path} first", first.found_by or "ldconfig")


RULE = Rule(
    check=check,
    prior=60,
    fact_checks=(FactCheck(sign="stub-told", read=_in_facts),),
    signatures=(
        signature(
            "stub-told",
            "CUDA_ERROR_STUB_LIBRARY",
            "cudaErrorStubLibrary",
            "stub library",
            pattern=r"CUDA_ERROR_STUB_LIBRARY|cudaErrorStubLibrary|(?:CUDA driver|libnvidia-ml|GDK)"
            r".{0,60}is a stub library",
        ),
        signature(
            "cuda-error-34",
            "UNKNOWN ERROR",
            "error 34",
            "Call to cuInit",
            pattern=r"cuInit.{0,40}UNKNOWN ERROR \(34\)|\[34\] Call to cuInit"
            r"|(?:CUDA|cuInit).{0,20}error:? 34\b",
        ),
        signature(
            "cuinit-failed",
            "cuInit",
            pattern=r"failed call to cuInit|cuInit(?:\(0\))? (?:failed|returned)",
        ),
        signature(
            "stubs-on-path",
            "stubs",
            "/stubs",
            pattern=r"LD_LIBRARY_PATH.{0,600}/stubs\b|ld\.so\.conf.{0,200}/stubs\b"
            r"|lib(?:cuda|nvidia-ml)\.so\S{0,20}.{0,20} => /\S{0,120}/stubs/"
            r"|^\s*/\S{0,160}/stubs/lib(?:cuda|nvidia-ml)\.so"
            r"|(?:libcuda (?:reported|found|loaded)|loaded).{0,60}/stubs/libcuda",
        ),
    ),
)
