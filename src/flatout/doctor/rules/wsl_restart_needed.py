"""WSL must be started anew, after a new driver or a sleep.

**Checks.** Libraries and driver that do not fit each other, or CUDA's unknown error, under WSL. On
the machine: Windows' driver beside the one that answers in WSL.

**Why it matters.** WSL takes the driver's files when it starts. When Windows gets another driver,
or the machine slept, the running WSL goes on with what is no longer there.

**Example.** `system has unsupported display driver / cuda driver combination`, under WSL

**Fix.** `wsl --shutdown` in PowerShell; asked first, since it ends every distro and container.

**Source.** microsoft/WSL#8529, #11589 (/usr/lib/wsl/lib is a mount of Windows' driver store).
"""

from __future__ import annotations

from flatout.doctor.reading import Facts, Reading, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Finding, Fix
from flatout.nouns.machine import Machine


def check(case: Case) -> Finding | None:
    """A running WSL that lost its driver."""
    changed = ("wsl-driver-differs", "cuda-driver-combination", "nvml-mismatch")
    lost = ("nvml-unknown-error", "cuda-unknown-error", "smi-cannot-communicate")
    is_silent = case.sees("wsl-silent")
    if case.machine.host.wsl != 2 or not is_silent and not case.sees(*changed, *lost):
        return None
    is_told = case.sees("windows-driver-updated", "machine-slept")
    is_likely = is_silent or case.sees(*changed)
    return Finding(
        rule="wsl-restart-needed",
        severity="error",
        certainty="decided" if is_told else "likely" if is_likely else "possible",
        problem="WSL must be started anew: its virtual machine does not answer."
        if is_silent
        else "WSL must be started anew: it still holds the driver's old files.",
        because="a sleep of the machine may leave it behind"
        if is_silent
        else "WSL takes the driver from Windows when it starts",
        evidence=case.evidence(
            "wsl-silent", *changed, *lost, "windows-driver-updated", "machine-slept"
        ),
        fixes=(
            Fix(
                text="restart WSL",
                safety="ask",
                commands=("wsl --list --running", "wsl --shutdown"),
                where="powershell",
                changes="ends every distro, container and run in WSL",
            ),
        ),
        confirm=("wsl.exe --list --running",),
    )


def _in_facts(machine: Machine) -> Facts:
    """Windows has another driver than the one that WSL still holds."""
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
    readings=(Reading(sign="wsl-driver-differs", read=_in_facts),),
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
