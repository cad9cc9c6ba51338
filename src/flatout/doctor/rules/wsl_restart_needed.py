"""WSL must be restarted after a driver update or a sleep.

**Checks.** Mismatched libraries and driver, or CUDA's unknown error, under WSL. On the machine:
Windows' driver version against the one that answers in WSL.

**Why it matters.** WSL maps the driver's files when it starts. After a Windows driver update or a
sleep, the running WSL keeps using files that no longer exist.

**Example.** `system has unsupported display driver / cuda driver combination`, under WSL

**Fix.** `wsl --shutdown` in PowerShell; asks first, since it stops every distro and container.

**Source.** microsoft/WSL#8529, #11589 (/usr/lib/wsl/lib is a mount of Windows' driver store).
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix
from flatout.schema.machine import Machine


def check(case: Case) -> Finding | None:
    """A running WSL that lost its driver."""
    changed = ("wsl-driver-differs", "cuda-driver-combination", "nvml-mismatch")
    lost = ("nvml-unknown-error", "cuda-unknown-error", "smi-cannot-communicate")
    is_silent = case.sees("wsl-silent")
    if case.machine.host.wsl != 2 or not is_silent and not case.sees(*changed, *lost):
        return None
    is_explicit = case.sees("windows-driver-updated", "machine-slept")
    is_likely = is_silent or case.sees(*changed)
    return Finding(
        rule="wsl-restart-needed",
        severity="error",
        certainty="decided" if is_explicit else "likely" if is_likely else "possible",
        problem="WSL must be restarted: its virtual machine does not answer."
        if is_silent
        else "WSL must be restarted: it still uses the old driver files.",
        because="this can happen after the machine slept"
        if is_silent
        else "WSL maps the Windows driver only when it starts",
        evidence=case.evidence(
            "wsl-silent", *changed, *lost, "windows-driver-updated", "machine-slept"
        ),
        fixes=(
            Fix(
                text="restart WSL",
                safety="ask",
                commands=("wsl --list --running", "wsl --shutdown"),
                where="powershell",
                changes="stops every distro, container and run in WSL",
            ),
        ),
        confirm=("wsl.exe --list --running",),
    )


def _in_facts(machine: Machine) -> Facts:
    """Windows has another driver than the one WSL still uses."""
    windows = machine.windows.driver if machine.windows else None
    if machine.host.wsl != 2 or not windows or not machine.driver or windows == machine.driver:
        return ()
    return (
        *fact(f"driver {windows} in Windows", "CIM"),
        *fact(f"driver {machine.driver} in WSL", "NVML"),
    )


RULE = Rule(
    check=check,
    prior=65,
    fact_checks=(FactCheck(sign="wsl-driver-differs", read=_in_facts),),
    signatures=(
        signature(
            "wsl-silent",
            "response was not received from the virtual machine",
            "Wsl/Service",
            pattern=r"response was not received from the virtual machine"
            r"|Wsl/Service(?:/CreateInstance)?/(?:E_UNEXPECTED|0x8007274c|0xd00002fe)",
        ),
        signature(
            "windows-driver-updated",
            "driver",
            pattern=r"(?:updat|upgrad|install)\w* .{0,30}(?:nvidia|windows|geforce|game ready)"
            r".{0,20}driver|driver .{0,20}(?:was|were|got) (?:just )?(?:updated|upgraded)",
        ),
    ),
    explains=("cuda-broken-after-suspend", "driver-library-version-mismatch"),
)
