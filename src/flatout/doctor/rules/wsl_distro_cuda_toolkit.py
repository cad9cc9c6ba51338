"""The distro's own nvidia-cuda-toolkit package is in use.

**Checks.** `apt install nvidia-cuda-toolkit`, and an nvcc in `/usr/bin`. On the machine: that
package as installed in dpkg.

**Why it matters.** The distro's package contains an old nvcc, which builds extensions for another
CUDA version than torch's, and may pull in a Linux libcuda.

**Example.** `ii  nvidia-cuda-toolkit  11.5.1-1ubuntu1`

**Fix.** Remove it; to compile, install `cuda-toolkit-X-Y` from NVIDIA's WSL repository; asks first.

**Source.** docs.nvidia.com/cuda/wsl-user-guide/ (CUDA support for WSL 2).
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix
from flatout.schema.machine import Machine


def check(case: Case) -> Finding | None:
    """The package is installed or being installed, under WSL."""
    is_refused = case.sees("nvcc-refuses-card")
    if not case.sees("distro-toolkit") or not (case.is_wsl or is_refused):
        return None
    return Finding(
        rule="wsl-distro-cuda-toolkit",
        severity="error" if is_refused else "warning",
        certainty="decided" if is_refused else "likely",
        problem="The distro's own nvidia-cuda-toolkit package is in use.",
        because="its nvcc is older than the frameworks' CUDA, and it may hide WSL's libcuda",
        evidence=case.evidence("distro-toolkit", "nvcc-refuses-card"),
        fixes=(
            Fix(
                text="remove it; frameworks bring their own CUDA",
                safety="ask",
                commands=("sudo apt-get remove --simulate nvidia-cuda-toolkit",
                          "sudo apt-get remove nvidia-cuda-toolkit"),
                where="wsl",
                changes="removes nvcc from /usr/bin",
                undo="sudo apt-get install nvidia-cuda-toolkit",
            ),
        ),
        confirm=("which nvcc", "nvcc --version"),
    )  # fmt: skip


def _in_facts(machine: Machine) -> Facts:
    """The package is installed."""
    found = machine.packages.distro_toolkit if machine.packages else None
    return fact(f"nvidia-cuda-toolkit {found}", "dpkg") if found and machine.host.wsl else ()


RULE = Rule(
    check=check,
    prior=30,
    fact_checks=(FactCheck(sign="distro-toolkit", read=_in_facts, severity="warning"),),
    signatures=(
        signature(
            "distro-toolkit",
            "nvidia-cuda-toolkit",
            "/usr/bin/nvcc",
            pattern=r"install .{0,60}nvidia-cuda-toolkit|^ii\s+nvidia-cuda-toolkit|^/usr/bin/nvcc"
            r"|command '/usr/bin/nvcc' failed"
            r"|Setting up nvidia-cuda-toolkit",
        ),
        signature(
            "nvcc-refuses-card",
            "Unsupported gpu architecture",
            "is not defined for option",
            pattern=r"nvcc fatal.{0,20}(?:Unsupported gpu architecture|is not defined for option)",
        ),
    ),
    explains=("gpu-arch-not-in-build",),
)
