"""The running kernel has no NVIDIA module.

**Checks.** modprobe finding no module, DKMS failing or lacking the kernel headers, a module built
for another kernel. On the machine: a card and the driver's packages, but no module for the running
kernel.

**Why it matters.** The driver's module is built for one kernel. After a kernel update without DKMS,
headers or a driver that supports the new kernel, no module loads.

**Example.** `modprobe: FATAL: Module nvidia not found in directory /lib/modules/6.8.0-40-generic`

**Fix.** Install the kernel headers and rebuild the module; asks first. A driver too old for the
kernel needs an older kernel or a newer driver.

**Source.** dkms(8); modprobe(8).
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix
from flatout.schema.machine import Machine

_SIGNS = ("dkms-failed", "kernel-headers-missing", "modprobe-not-found", "module-format")


def check(case: Case) -> Finding | None:
    """A missing or mismatched module, or a driver that does not respond for no visible reason."""
    is_silent = case.sees("smi-cannot-communicate", "nvml-driver-not-loaded")
    if case.is_wsl or not case.sees(*_SIGNS) and not is_silent:
        return None
    return Finding(
        rule="nvidia-module-not-built-for-kernel",
        severity="error",
        certainty="decided" if case.sees(*_SIGNS) else "likely",
        problem="The running kernel has no NVIDIA module.",
        because="DKMS or the distribution builds the module for each kernel, but not for this one",
        evidence=case.evidence(*_SIGNS, "smi-cannot-communicate", "nvml-driver-not-loaded"),
        fixes=(
            Fix(
                text="install this kernel's headers and rebuild the module",
                safety="ask",
                commands=(
                    "sudo apt-get install linux-headers-$(uname -r)",
                    "sudo dkms autoinstall",
                    "sudo modprobe nvidia",
                ),
                where="host",
                changes="adds a package and a kernel module",
            ),
        ),
        confirm=("uname -r", "dkms status", "sudo modprobe nvidia"),
    )


def _in_facts(machine: Machine) -> Facts:
    """The driver's packages are installed, but the running kernel has no module from them."""
    module = machine.module
    if module is None or module.loaded or module.is_built is not False:
        return ()
    if not module.pci_devices or not module.packages:
        return ()
    return (
        *fact(f"no nvidia module for kernel {machine.host.release}", "modinfo"),
        *fact(f"installed: {', '.join(module.packages[:3])}", "dpkg"),
    )


RULE = Rule(
    check=check,
    prior=60,
    fact_checks=(
        FactCheck(sign="kernel-headers-missing", read=_in_facts),
    ),
    signatures=(
        signature(
            "dkms-failed",
            "dkms", "module build on kernel", "nvidia",
            pattern=r"Bad return status for module build|dkms install.{0,80}exited [1-9]"
            r"|nvidia.{0,80}module build failed|^nvidia[/,]\s?[\d.]+(?:: added|.{0,60}broken)"
            r"|dkms.{0,60}nvidia.{0,60}(?:failed|bad exit status)"
            r"|nvidia.{0,40}dkms.{0,40}(?:failed|returned error|bad exit)",
        ),
        signature(
            "kernel-headers-missing",
            "kernel headers", "kernel source", "kernel-source-path", "Kernel source tree",
            pattern=r"kernel headers for kernel \S+ cannot be found|unable to (?:find|locate) the"
            r" kernel source|kernel headers.{0,40}(?:missing|not (?:found|installed))",
        ),
        signature(
            "module-format",
            "Exec format error", "version of symbol", "Invalid module format", "vermagic",
            pattern=r"nvidia.{0,60}(?:Exec format error|Invalid module format)"
            r"|nvidia\S{0,20}: (?:disagrees about version of symbol|version magic)",
        ),
    ),
    explains=("host-nvidia-driver-missing",),
)  # fmt: skip
