"""CUDA's stub libcuda is loaded instead of the driver's.

**Checks.** CUDA's error 34, the words of the stubs, and their folder on the loader's path. On the
machine: the libcuda that the loader takes first lies in a folder `stubs`.

**Why it matters.** The toolkit's folder `stubs` holds libraries to link against where no driver is.
They can do nothing else, and hide the driver's when they are found first.

**Example.** `failed call to cuInit: UNKNOWN ERROR (34)`

**Fix.** Take `stubs` from LD_LIBRARY_PATH and /etc/ld.so.conf.d; safe for this shell.

**Source.** https://docs.nvidia.com/cuda/cuda-driver-api, CUDA_ERROR_STUB_LIBRARY
"""

from __future__ import annotations

from flatout.doctor.reading import Facts, Reading, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Certainty, Finding, Fix
from flatout.nouns.machine import Machine

_LOADED = ("stub-told", "cuda-error-34")
_FAILURES = ("cuda-no-device", "cuinit-failed", "cuda-unknown-error", "cuda-driver-insufficient")


def check(case: Case) -> Finding | None:
    """A stub speaks, or its folder is on the path and CUDA fails."""
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
        problem="CUDA's stub libcuda is loaded instead of the driver's.",
        evidence=case.evidence(*_LOADED, "stubs-on-path", "cuinit-failed"),
        fixes=(
            Fix(
                text="take the folder `stubs` off the loader's path; in a Dockerfile set it for "
                "the step that links, and for no other",
                safety="safe",
                commands=(
                    "export LD_LIBRARY_PATH=$(printenv LD_LIBRARY_PATH | tr : '\\n' | "
                    "grep -v stubs | paste -sd:)",
                ),
                where="container" if case.is_container else "here",
                changes="this shell alone",
            ),
        ),
        confirm=("ldconfig -p | grep libcuda", "printenv LD_LIBRARY_PATH"),
    )


def _in_facts(machine: Machine) -> Facts:
    """The loader takes a stub."""
    first = next((one for one in machine.libraries or () if one.name == "libcuda"), None)
    if first is None or not first.is_stub:
        return ()
    return fact(f"the loader takes {first.path}", first.found_by or "ldconfig")


RULE = Rule(
    check=check,
    prior=60,
    readings=(Reading(sign="stub-told", read=_in_facts),),
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
