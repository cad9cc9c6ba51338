"""A Linux NVIDIA driver is installed inside WSL and hides the Windows driver.

**Checks.** Packages such as `nvidia-driver-*`, `nvidia-utils-*`, `libnvidia-compute-*`, `cuda` or
`cuda-drivers` in the distro, and their libcuda or libnvidia-ml before `/usr/lib/wsl/lib`. On the
machine: the driver's packages, and the libcuda that the loader finds first.

**Why it matters.** WSL has no NVIDIA kernel module: it uses the Windows driver through
`/usr/lib/wsl/lib`. The Linux libraries look for a module that does not exist, and fail.

**Example.** `Failed to initialize NVML: GPU access blocked by the operating system`, after `apt
install nvidia-utils-510`

**Fix.** Remove the Linux driver's packages; asks first, with apt's simulation. The toolkit
(`cuda-toolkit-*`) may stay.

**Source.** docs.nvidia.com/cuda/wsl-user-guide/ (the Windows driver is the only one to install).
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Certainty, Finding, Fix
from flatout.schema.machine import Machine

_PACKAGES = (
    r"(?:nvidia-(?:driver|utils|compute-utils|dkms|kernel|headless|open|\d{3})|libnvidia-compute"
    r"|libnvidia-ml|cuda-drivers|xserver-xorg-video-nvidia)"
)
_REMOVE = "apt-get remove --purge '^nvidia-(driver|utils|dkms|compute|kernel).*' '^libnvidia-.*'"
_SIGNS = ("driver-package-installed", "driver-package-listed", "linux-libcuda-found")


def check(case: Case) -> Finding | None:
    """Signs of a Linux driver in WSL, or with messages that only WSL prints."""
    is_wsl = case.machine.host.wsl == 2 or case.sees("nvml-blocked")
    if not is_wsl or case.is_container and not case.sees(*_SIGNS):
        return None
    failures = (
        "nvml-blocked", "smi-cannot-communicate", "nvml-mismatch", "nvml-driver-not-loaded",
    )  # fmt: skip
    if not case.sees(*_SIGNS, *failures):
        return None
    packages = case.machine.wsl.linux_driver_packages if case.machine.wsl else None
    certainty: Certainty
    if case.sees(*_SIGNS) or packages:
        certainty = "decided" if case.sees(*failures) else "likely"
    else:
        certainty = "possible" if case.sees("nvml-blocked") else "likely"
    return Finding(
        rule="wsl-linux-driver-installed-inside",
        severity="error",
        certainty=certainty,
        problem="A Linux NVIDIA driver is installed inside WSL and hides the Windows driver.",
        because="WSL uses the Windows driver; the Linux packages have no kernel module here",
        evidence=case.evidence(*_SIGNS, *failures),
        fixes=(
            Fix(
                text="remove only the Linux driver from the distro",
                safety="ask",
                commands=(f"sudo {_REMOVE} --simulate", f"sudo {_REMOVE}"),
                where="wsl",
                changes="removes packages; the first command shows which",
                undo="apt-get install, with the names of the removed packages",
            ),
        ),
        confirm=("dpkg -l | grep -E 'nvidia|cuda-drivers'", "ldconfig -p | grep libcuda"),
    )


def _first_is_foreign(machine: Machine) -> Facts:
    """The loader finds another libcuda than WSL's first."""
    first = next((one for one in machine.libraries or () if one.name == "libcuda"), None)
    if machine.host.wsl != 2 or machine.host.container or first is None or first.is_stub:
        return ()
    # A toolkit's compatibility package has its own rule.
    if "/wsl/" in first.path or "/compat" in first.path:
        return ()
    return fact(f"the loader finds {first.path} first", first.found_by or "ldconfig")


def _has_packages(machine: Machine) -> Facts:
    """The packages are installed."""
    packages = machine.wsl.linux_driver_packages if machine.wsl else None
    if machine.host.wsl != 2 or machine.host.container or not packages:
        return ()
    return fact(f"installed: {', '.join(packages[:3])}", "dpkg")


RULE = Rule(
    check=check,
    prior=70,
    fact_checks=(
        FactCheck(sign="linux-libcuda-found", read=_first_is_foreign),
        FactCheck(
            sign="driver-package-listed",
            read=_has_packages,
            severity="warning",
            certainty="likely",
        ),
    ),
    signatures=(
        signature(
            "driver-package-installed",
            "install",
            "nvidia-driver",
            pattern=rf"\b(?:apt|apt-get|aptitude|dnf|yum|zypper)\b.{{0,40}}\binstall\b.{{0,80}}"
            rf"(?:{_PACKAGES}|\bcuda(?:-\d+-\d+)?(?=\s|$))|ubuntu-drivers (?:auto)?install",
        ),
        signature(
            "driver-package-listed", "nvidia", "cuda-drivers", pattern=rf"^ii\s+{_PACKAGES}"
        ),
        signature(
            "linux-libcuda-found",
            "linux-gnu",
            pattern=r"(?:=> |^)/(?:usr/)?lib/x86_64-linux-gnu/lib(?:cuda|nvidia-ml)\.so",
        ),
    ),
    explains=("host-nvidia-driver-missing", "driver-library-version-mismatch",
              "nvidia-module-not-built-for-kernel", "wsl-gpu-stack-incomplete",
              "wsl-restart-needed"),
)  # fmt: skip
