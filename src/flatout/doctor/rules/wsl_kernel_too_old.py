"""WSL's kernel is older than its GPU bridge needs.

**Checks.** On the machine: the version of the kernel. Below 4.19.121 there is no GPU; below
5.10.16.3 NVIDIA's guide advises against it, and new drivers of Windows find an old bridge.

**Why it matters.** The kernel holds the bridge (dxgkrnl) to the driver in Windows. That driver is
updated by itself, the kernel of an old WSL is not.

**Example.** `4.19.84-microsoft-standard`

**Fix.** `wsl --update`, then a restart of WSL; asked first.

**Source.** NVIDIA, CUDA on WSL user guide, 5; MicrosoftDocs/WSL: gpu-compute.md.
"""

from __future__ import annotations

from flatout.doctor.reading import Facts, Reading, fact, version
from flatout.doctor.rule import Case, Rule
from flatout.nouns.finding import Finding, Fix
from flatout.nouns.machine import Machine

_SIGNS = ("wsl-kernel-without-gpu", "wsl-kernel-old")


def check(case: Case) -> Finding | None:
    """The version is below one of the two."""
    if not case.sees(*_SIGNS):
        return None
    return Finding(
        rule="wsl-kernel-too-old",
        severity="error" if case.sees("wsl-kernel-without-gpu") else "warning",
        problem="WSL's kernel is older than the driver of Windows expects.",
        because="the GPU's bridge is part of the kernel, and Windows' driver has moved on",
        evidence=case.evidence(*_SIGNS),
        fixes=(
            Fix(
                text="update WSL, and restart it",
                safety="ask",
                commands=("wsl --update", "wsl --list --running", "wsl --shutdown"),
                where="powershell",
                changes="WSL's kernel; ends every distro, container and run in WSL",
            ),
        ),
        confirm=("uname -r", "wsl.exe --version"),
    )


def _without_gpu(machine: Machine) -> Facts:
    """Before the first kernel that has the bridge."""
    return _before(machine, (0,), (4, 19, 121))


def _old(machine: Machine) -> Facts:
    """With a bridge, and before the one that NVIDIA recommends."""
    return _before(machine, (4, 19, 121), (5, 10, 16, 3))


def _before(machine: Machine, first: tuple[int, ...], end: tuple[int, ...]) -> Facts:
    release = machine.host.release
    if machine.host.wsl != 2 or not release or "microsoft" not in release.lower():
        return ()
    return fact(f"kernel {release}", "/proc") if first <= version(release) < end else ()


RULE = Rule(
    check=check,
    prior=45,
    readings=(
        Reading(sign="wsl-kernel-without-gpu", read=_without_gpu),
        Reading(sign="wsl-kernel-old", read=_old, severity="warning"),
    ),
    explains=("wsl-gpu-stack-incomplete",),
)
