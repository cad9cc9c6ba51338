"""WSL's kernel is too old for the GPU bridge.

**Checks.** On the machine: the version of the kernel. Below 4.19.121 there is no GPU support;
NVIDIA's guide advises against versions below 5.10.16.3, whose bridge is too old for new Windows
drivers.

**Why it matters.** The kernel contains the bridge (dxgkrnl) to the Windows driver. That driver
updates automatically; the kernel of an old WSL does not.

**Example.** `4.19.84-microsoft-standard`

**Fix.** Run `wsl --update`, then restart WSL; asks first.

**Source.** NVIDIA, CUDA on WSL user guide, 5; MicrosoftDocs/WSL: gpu-compute.md.
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact, version
from flatout.doctor.rule import Case, Rule
from flatout.schema.finding import Finding, Fix
from flatout.schema.machine import Machine

_SIGNS = ("wsl-kernel-without-gpu", "wsl-kernel-old")


def check(case: Case) -> Finding | None:
    """The version is below one of the two limits."""
    if not case.sees(*_SIGNS):
        return None
    return Finding(
        rule="wsl-kernel-too-old",
        severity="error" if case.sees("wsl-kernel-without-gpu") else "warning",
        problem="WSL's kernel is too old for the Windows driver.",
        because="the GPU bridge is part of the kernel, and the Windows driver is newer",
        evidence=case.evidence(*_SIGNS),
        fixes=(
            Fix(
                text="update WSL, and restart it",
                safety="ask",
                commands=("wsl --update", "wsl --list --running", "wsl --shutdown"),
                where="powershell",
                changes="WSL's kernel; stops every distro, container and run in WSL",
            ),
        ),
        confirm=("uname -r", "wsl.exe --version"),
    )


def _without_gpu(machine: Machine) -> Facts:
    """Before the first kernel that has the bridge."""
    return _before(machine, (0,), (4, 19, 121))


def _old(machine: Machine) -> Facts:
    """With a bridge, but older than NVIDIA recommends."""
    return _before(machine, (4, 19, 121), (5, 10, 16, 3))


def _before(machine: Machine, first: tuple[int, ...], end: tuple[int, ...]) -> Facts:
    release = machine.host.release
    if machine.host.wsl != 2 or not release or "microsoft" not in release.lower():
        return ()
    return fact(f"kernel {release}", "/proc") if first <= version(release) < end else ()


RULE = Rule(
    check=check,
    prior=45,
    fact_checks=(
        FactCheck(sign="wsl-kernel-without-gpu", read=_without_gpu),
        FactCheck(sign="wsl-kernel-old", read=_old, severity="warning"),
    ),
    explains=("wsl-gpu-stack-incomplete",),
)
