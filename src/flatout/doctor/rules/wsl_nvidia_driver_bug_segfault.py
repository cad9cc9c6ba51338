"""nvidia-smi crashes under WSL because of a bug in the Windows driver.

**Checks.** A segmentation fault of nvidia-smi, or inside libnvidia-ml. On the machine: how NVML or
nvidia-smi ended.

**Why it matters.** Some Windows drivers ship WSL libraries that crash when NVML is queried. CUDA
may still work; programs that read the GPU through NVML do not.

**Example.** `nvidia-smi[412]: segfault at 0 ip ... in libnvidia-ml.so.1`

**Fix.** Install another driver in Windows; by hand.

**Source.** microsoft/WSL#11277.
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix
from flatout.schema.machine import Machine


def check(case: Case) -> Finding | None:
    """nvidia-smi died from SIGSEGV."""
    if not case.sees("smi-segfault"):
        return None
    return Finding(
        rule="wsl-nvidia-driver-bug-segfault",
        severity="error",
        certainty="decided" if case.is_wsl else "likely",
        problem="nvidia-smi crashes: this Windows driver has a bug in its WSL libraries.",
        because="WSL's NVML library comes with the Windows driver",
        evidence=case.evidence("smi-segfault", "nvidia-smi-head"),
        fixes=(
            Fix(
                text="install another NVIDIA driver in Windows, newer or one branch older",
                commands=("wsl --shutdown",),
                where="powershell",
                changes="stops every distro and container",
            ),
        ),
        confirm=("nvidia-smi.exe", "dmesg | grep -i segfault"),
    )


def _in_facts(machine: Machine) -> Facts:
    """One of the driver's programs crashed."""
    reason = machine.unread.get("gpus", "")
    if machine.host.wsl != 2 or "crashed (exit code" not in reason:
        return ()
    return fact(reason, "here")


RULE = Rule(
    check=check,
    fact_checks=(FactCheck(sign="smi-segfault", read=_in_facts),),
    signatures=(
        signature(
            "smi-segfault",
            "nvidia-smi",
            "libnvidia-ml.so",
            "libnvidia-ml",
            pattern=r"nvidia-smi\S{0,12}: segfault|segfault at .{0,120}in lib(?:nvidia-ml|cuda)"
            r"|nvidia-smi[^\n]{0,60}\n?[^\n]{0,60}(?:Segmentation fault|SIGSEGV)"
            r"|segmentation fault(?: \(core dumped\))? {1,8}\S{0,40}nvidia-smi",
            lines=2,
        ),
    ),
)
