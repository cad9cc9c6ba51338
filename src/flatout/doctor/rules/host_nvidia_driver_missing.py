"""No NVIDIA driver is installed on the host.

**Checks.** Missing nvidia-smi, libnvidia-ml and libcuda, and frameworks that find no driver. On the
machine: a card on the PCI bus, but neither NVIDIA packages nor an NVIDIA module.

**Why it matters.** CUDA toolkits, containers and wheels include everything except the driver.

**Example.** `RuntimeError: Found no NVIDIA driver on your system`

**Fix.** Install the driver on the host: for WSL, in Windows; for a container, outside it; by hand.

**Source.** pytorch/pytorch: c10/cuda/CUDAFunctions.cpp;
docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/troubleshooting.html.
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Certainty, Finding, Fix
from flatout.schema.machine import Machine

_MISSING = ("no-driver-found", "nvml-library-missing", "smi-not-found", "tf-no-kernel-driver")
_SILENT = ("smi-cannot-communicate", "nvml-driver-not-loaded")


def check(case: Case) -> Finding | None:
    """No part of the driver is found, and no driver version is shown."""
    is_unseen = case.sees("wsl-no-adapters")
    is_libcuda = bool(case.value("libcuda-not-opened", "versioned"))
    if not case.sees(*_MISSING, *_SILENT) and not is_libcuda and not is_unseen:
        return None
    has_driver = case.sees("nvidia-smi-head", "kernel-module-version")
    certainty: Certainty = "likely"
    if case.sees("no-driver-found") and not case.is_container and not has_driver:
        certainty = "decided"
    if has_driver or not case.sees(*_MISSING) and not is_libcuda:
        certainty = "possible"
    if case.is_container and not case.sees("nvml-library-missing"):
        certainty = "possible"
    if is_unseen:
        certainty = "likely"
    place = "powershell" if case.is_wsl or case.machine.host.os == "windows" else "host"
    return Finding(
        rule="host-nvidia-driver-missing",
        severity="error",
        certainty=certainty,
        problem="No NVIDIA driver was found on the host.",
        because="frameworks, toolkits and containers do not include the driver",
        evidence=case.evidence(*_MISSING, *_SILENT, "libcuda-not-opened", "wsl-no-adapters"),
        fixes=(
            Fix(
                text="install NVIDIA's driver"
                + (" in Windows" if place == "powershell" else " on the host, outside containers"),
                where="powershell" if place == "powershell" else "host",
                commands=() if place == "powershell" else ("sudo ubuntu-drivers install",),
                changes="installs the driver; restarts the machine",
            ),
        ),
        confirm=("lspci -nnk | grep -A3 -i nvidia", "nvidia-smi", "dpkg -l | grep nvidia-driver"),
    )


def _in_facts(machine: Machine) -> Facts:
    """There is a card, but no part of its driver."""
    module = machine.module
    if module is None or machine.driver or machine.host.container or not module.pci_devices:
        return ()
    # A card passed through to a virtual machine has another owner.
    if module.loaded or module.is_built or module.packages or module.owner:
        return ()
    return fact(f"NVIDIA device {module.pci_devices[0]}, no driver", "/sys/bus/pci")


RULE = Rule(
    check=check,
    prior=45,
    fact_checks=(FactCheck(sign="no-driver-found", read=_in_facts),),
    signatures=(
        signature(
            "no-driver-found",
            "Found no NVIDIA driver",
            "no NVIDIA driver",
            "NVIDIA driver is not installed",
            "driver not installed",
            "NVIDIA driver was not detected",
            "NVIDIA Driver was not detected",
            pattern=r"no NVIDIA driver|NVIDIA driver (?:is not|not) installed"
            r"|NVIDIA driver was not detected",
        ),
        signature(
            "tf-no-kernel-driver",
            "kernel driver does not appear to be running",
        ),
    ),
)
