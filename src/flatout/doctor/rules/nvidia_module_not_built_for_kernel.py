"""There is no NVIDIA module for the running kernel.

**Checks.** modprobe that finds no module, DKMS that failed or lacks the kernel's headers, a module
made for another kernel. On the machine: a card and the driver's packages, and no module for the
running kernel.

**Why it matters.** The driver's module is built for one kernel. After a kernel update without
DKMS, headers or a driver that knows the new kernel, nothing loads.

**Example.** `modprobe: FATAL: Module nvidia not found in directory /lib/modules/6.8.0-40-generic`

**Fix.** Install the kernel's headers and build the module again; asked first. A driver too old
for the kernel needs an older kernel or a newer driver.

**Source.** dkms(8); modprobe(8).
"""

from __future__ import annotations

from flatout.doctor.reading import Facts, Reading, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Finding, Fix
from flatout.nouns.machine import Machine

_SIGNS = ("dkms-failed", "kernel-headers-missing", "modprobe-not-found", "module-format")


def check(case: Case) -> Finding | None:
    """A missing or foreign module; or a driver that does not answer, and nothing tells why."""
    is_silent = case.sees("smi-cannot-communicate", "nvml-driver-not-loaded")
    if case.is_wsl or not case.sees(*_SIGNS) and not is_silent:
        return None
    return Finding(
        rule="nvidia-module-not-built-for-kernel",
        severity="error",
        certainty="decided" if case.sees(*_SIGNS) else "likely",
        problem="The running kernel has no NVIDIA module.",
        because="it is built for each kernel, by DKMS or the distribution, and this one was missed",
        evidence=case.evidence(*_SIGNS, "smi-cannot-communicate", "nvml-driver-not-loaded"),
        fixes=(
            Fix(
                text="install the headers of this kernel and build the module again",
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
    """The driver's packages are here, and the running kernel has no module of theirs."""
    module = machine.module
    if module is None or module.loaded or module.is_built is not False:
        return ()
    if not module.pci_devices or not module.packages:
        return ()
    return (
        *fact(f"no module nvidia for kernel {machine.host.release}", "modinfo"),
        *fact(f"installed: {', '.join(module.packages[:3])}", "dpkg"),
    )


RULE = Rule(
    check=check,
    prior=60,
    readings=(
        Reading(sign="kernel-headers-missing", read=_in_facts),
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
