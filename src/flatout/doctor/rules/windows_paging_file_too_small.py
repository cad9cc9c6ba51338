"""Windows' paging file is too small.

**Checks.** Windows error 1455 from Python, torch, safetensors and CUDA, and Windows' own diagnosis
of low virtual memory. On the machine: a missing or very small paging file.

**Why it matters.** Windows commits memory before it is used: each worker that imports torch commits
gigabytes for the CUDA libraries. The limit is memory plus paging file.

**Example.** `OSError: [WinError 1455] The paging file is too small for this operation to
complete.`

**Fix.** Enlarge the paging file, or use fewer loader workers; by hand.

**Source.** learn.microsoft.com/windows/win32/debug/system-error-codes--1300-1699-
(ERROR_COMMITMENT_LIMIT); ultralytics/yolov3#1643.
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix
from flatout.schema.machine import Machine
from flatout.schema.units import bytes_text

_SIGNS = ("commitment-limit",)


def check(case: Case) -> Finding | None:
    """One of the messages was printed."""
    if not case.sees(*_SIGNS):
        return None
    return Finding(
        rule="windows-paging-file-too-small",
        severity="error",
        problem="Windows' paging file is too small.",
        because=("Windows commits memory when it is allocated, and the commit limit is reached"),
        evidence=case.evidence(*_SIGNS),
        fixes=(
            Fix(
                text=(
                    "let Windows manage the paging file's size, or set it to twice the "
                    "memory; or use fewer loader workers"
                ),
                commands=("SystemPropertiesPerformance.exe",),
                where="powershell",
                changes="restarts Windows",
            ),
        ),
        confirm=("powershell.exe -c 'Get-CimInstance Win32_PageFileUsage'",),
    )


def _in_facts(machine: Machine) -> Facts:
    """The commit limit is hardly larger than physical memory."""
    windows = machine.windows
    if windows is None or windows.memory_bytes is None or windows.commit_limit_bytes is None:
        return ()
    page_file = windows.commit_limit_bytes - windows.memory_bytes
    if page_file >= 2**30:
        return ()
    return (
        *fact(f"memory {bytes_text(windows.memory_bytes)}", "CIM"),
        *fact(f"paging files {bytes_text(max(0, page_file))}", "CIM"),
    )


RULE = Rule(
    check=check,
    prior=70,
    fact_checks=(FactCheck(sign="commitment-limit", read=_in_facts, severity="warning"),),
    signatures=(
        signature(
            "commitment-limit",
            "WinError 1455",
            "os error 1455",
            "error code",
            "Error 1455",
            "error: 1455",
            "paging file is too small",
            "0x800705AF",
            "ERROR_COMMITMENT_LIMIT",
            "low virtual memory condition",
            "pagefile is too small",
            pattern=r"(?:WinError|os error|error code:?|error:?|code)\W{1,3}1455\b|"
            r"(?:paging file|pagefile) is too small|0x800705AF|"
            r"ERROR_COMMITMENT_LIMIT|low virtual memory condition",
        ),
    ),
    explains=(
        "windows-missing-runtime-dll",
        "host-memory-exhausted",
    ),
)
