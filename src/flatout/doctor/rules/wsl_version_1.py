"""This distro runs as WSL 1, which has no GPU.

**Checks.** The kernel's release (`4.4.0-BUILD-Microsoft` is WSL 1), and the column VERSION of `wsl
--list --verbose`. On the machine: its kernel.

**Why it matters.** WSL 1 translates system calls and has no Linux kernel: there is no `/dev/dxg`,
no module can be loaded, and installing packages inside does not change that.

**Example.** `Error! Your kernel headers for kernel 4.4.0-19041-Microsoft cannot be found.`

**Fix.** Convert the distro: `wsl --set-version NAME 2` in PowerShell; asks first, since it stops
and copies the distro.

**Source.** learn.microsoft.com/windows/wsl/compare-versions; docs.nvidia.com/cuda/wsl-user-guide/.
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix
from flatout.schema.machine import Machine


def check(case: Case) -> Finding | None:
    """The kernel's name or the list of distros shows WSL 1."""
    if case.machine.host.wsl != 1 and not case.sees("wsl-list-version-1", "wsl1-refused"):
        return None
    return Finding(
        rule="wsl-version-1",
        severity="error",
        problem="This distro runs as WSL 1, which has no GPU.",
        because="WSL 1 has no Linux kernel, so it has neither a driver nor /dev/dxg",
        evidence=case.evidence("wsl1-kernel", "wsl-list-version-1", "wsl1-refused"),
        fixes=(
            Fix(
                text="convert the distro to WSL 2",
                safety="ask",
                commands=("wsl --list --verbose", "wsl --set-version <distro> 2"),
                where="powershell",
                changes="stops the distro and copies its files; takes minutes",
                undo="wsl --set-version <distro> 1",
            ),
        ),
    )


def _in_facts(machine: Machine) -> Facts:
    """The kernel is WSL 1's."""
    return fact(f"kernel {machine.host.release}", "/proc") if machine.host.wsl == 1 else ()


RULE = Rule(
    check=check,
    fact_checks=(
        FactCheck(sign="wsl1-refused", read=_in_facts),
    ),
    signatures=(
        signature(
            "wsl-list-version-1",
            "Running",
            "Stopped",
            pattern=r"^\s*\*?\s*\S+\s+(?:Running|Stopped)\s+1\s*$",
        ),
        signature(
            "wsl1-refused",
            "wsl1",
            "wsl 1",
            pattern=r"\bWSL ?1\b.{0,40}(?:not support|unsupported|no GPU|is not)"
            r"|(?:not support\w*|requires WSL ?2).{0,40}\bWSL ?1\b",
        ),
    ),
    explains=("wsl-linux-driver-installed-inside", "host-nvidia-driver-missing",
              "nvidia-module-not-built-for-kernel", "docker-daemon-not-running",
              "wsl-gpu-stack-incomplete", "wsl-libcuda-not-on-loader-path"),
)  # fmt: skip
