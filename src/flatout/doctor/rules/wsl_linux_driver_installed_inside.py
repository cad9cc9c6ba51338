"""A Linux NVIDIA driver is installed inside WSL and hides the real one.

**Checks.** Packages such as `nvidia-driver-*`, `nvidia-utils-*`, `libnvidia-compute-*`, `cuda` or
`cuda-drivers` in the distro, and their libcuda or libnvidia-ml before `/usr/lib/wsl/lib`. On the
machine: the driver's packages, and the libcuda that the loader takes first.

**Why it matters.** WSL has no NVIDIA kernel module: its driver is Windows', reached through
`/usr/lib/wsl/lib`. The Linux libraries look for a module that is not there, and fail.

**Example.** `Failed to initialize NVML: GPU access blocked by the operating system`, after `apt
install nvidia-utils-510`

**Fix.** Remove the Linux driver's packages; asked first, with apt's simulation. The toolkit
(`cuda-toolkit-*`) may stay.

**Source.** docs.nvidia.com/cuda/wsl-user-guide/ (the Windows driver is the only one to install).
"""

from __future__ import annotations

from flatout.doctor.reading import Facts, Reading, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Certainty, Finding, Fix
from flatout.nouns.machine import Machine

_PACKAGES = (
    r"(?:nvidia-(?:driver|utils|compute-utils|dkms|kernel|headless|open|\d{3})|libnvidia-compute"
    r"|libnvidia-ml|cuda-drivers|xserver-xorg-video-nvidia)"
)
_REMOVE = "apt-get remove --purge '^nvidia-(driver|utils|dkms|compute|kernel).*' '^libnvidia-.*'"
_SIGNS = ("driver-package-installed", "driver-package-listed", "linux-libcuda-found")


def check(case: Case) -> Finding | None:
    """Signs of a Linux driver where WSL, or what only WSL prints, is seen."""
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
        problem="A Linux NVIDIA driver is installed inside WSL and hides the real one.",
        because="WSL's driver is that of Windows; the Linux packages have no module here",
        evidence=case.evidence(*_SIGNS, *failures),
        fixes=(
            Fix(
                text="remove the Linux driver from the distro, and only that",
                safety="ask",
                commands=(f"sudo {_REMOVE} --simulate", f"sudo {_REMOVE}"),
                where="wsl",
                changes="removes packages; the first command shows which",
                undo="apt-get install with the names that were removed",
            ),
        ),
        confirm=("dpkg -l | grep -E 'nvidia|cuda-drivers'", "ldconfig -p | grep libcuda"),
    )


def _first_is_foreign(machine: Machine) -> Facts:
    """The loader takes another libcuda than WSL's."""
    first = next((one for one in machine.libraries or () if one.name == "libcuda"), None)
    if machine.host.wsl != 2 or machine.host.container or first is None or first.is_stub:
        return ()
    # A toolkit's compatibility package is another matter.
    if "/wsl/" in first.path or "/compat" in first.path:
        return ()
    return fact(f"the loader takes {first.path}", first.found_by or "ldconfig")


def _has_packages(machine: Machine) -> Facts:
    """The packages are installed."""
    packages = machine.wsl.linux_driver_packages if machine.wsl else None
    if machine.host.wsl != 2 or machine.host.container or not packages:
        return ()
    return fact(f"installed: {', '.join(packages[:3])}", "dpkg")


RULE = Rule(
    check=check,
    prior=70,
    readings=(
        Reading(sign="linux-libcuda-found", read=_first_is_foreign),
        Reading(
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
