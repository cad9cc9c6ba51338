"""A Windows DLL that the framework depends on is missing.

**Checks.** Windows errors 126, 182 and 1114 while torch, TensorFlow or an extension is loaded, and
messages that name the Visual C++ runtime.

**Why it matters.** Wheels need Microsoft's Visual C++ runtime, and some the OpenMP runtime
`libomp140`. Windows reports the library that failed to load, not the missing one.

**Example.** `[WinError 126] The specified module could not be found. Error loading
"...\\torch\\lib\\fbgemm.dll"`

**Fix.** Install the newest Visual C++ redistributable; asks first.

**Source.** pytorch/pytorch#131662; learn.microsoft.com/cpp/windows/latest-supported-vc-redist.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Certainty, Finding, Fix

_DECISIVE = ("dll-not-loaded",)
_COMPATIBLE = ("torch-without-openmp",)


def check(case: Case) -> Finding | None:
    """One of the messages was printed."""
    if not case.sees(*_DECISIVE, *_COMPATIBLE):
        return None
    # The wheel of torch 2.4.0 for Windows lacks libomp140.
    if not case.sees("dll-not-loaded") and case.machine.host.os != "windows":
        return None
    certainty: Certainty = "possible"
    if case.sees(*_DECISIVE):
        certainty = "decided"
    return Finding(
        rule="windows-missing-runtime-dll",
        severity="error" if case.sees("dll-not-loaded") else "warning",
        certainty=certainty,
        problem="A Windows DLL that the framework depends on is missing.",
        because="Windows reports which library failed to load, not which one is missing",
        evidence=case.evidence(*_DECISIVE, *_COMPATIBLE),
        fixes=(
            Fix(
                text="install the newest Visual C++ redistributable (x64)",
                safety="ask",
                commands=("winget install Microsoft.VCRedist.2015+.x64",),
                where="powershell",
                changes="installs Microsoft's runtime",
                undo="winget uninstall Microsoft.VCRedist.2015+.x64",
            ),
        ),
        confirm=(
            (
                "Get-Item C:\\Windows\\System32\\vcruntime140_1.dll, "
                "C:\\Windows\\System32\\libomp140.x86_64.dll"
            ),
        ),
    )


RULE = Rule(
    check=check,
    prior=55,
    signatures=(
        signature(
            "dll-not-loaded",
            "WinError 126",
            "WinError 1114",
            "WinError 182",
            "DLL load failed",
            "C++ Redistributable is not installed",
            "VCRUNTIME140",
            "MSVCP140",
            "libomp140",
            "vcomp140",
            "DLL initialization routine failed",
            "one of its dependencies",
            pattern=r"WinError (?:126|1114|182)\](?![^\n]{0,160}(?:nvcuda|cudart|cublas|"
            r"cudnn)\w*\.dll)|DLL load failed(?: while importing (?!flash_attn|"
            r"mmcv)\w+)?: (?!.{0,20}(?:procedure|Win32))(?!%1)|"
            r"Redistributable is not installed|(?:VCRUNTIME140\w*|MSVCP140\w*|"
            r"libomp140\w*|vcomp140)(?:\.x86_64)?\.dll",
        ),
        signature(
            "torch-without-openmp",
            "Name: torch",
            pattern=r"^Name: torch\s{0,3}\nVersion: 2\.4\.0\b",
            lines=2,
        ),
    ),
)
