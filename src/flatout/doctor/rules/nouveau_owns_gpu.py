"""nouveau, or its successor nova, has claimed the GPU.

**Checks.** The kernel driver in use in lspci, the kernel's lines about a device already bound, and
the installer's error. On the machine: the module bound to the card, from the PCI bus.

**Why it matters.** A device has only one driver. While nouveau or nova_core is bound to it,
NVIDIA's driver finds no device.

**Example.** `Kernel driver in use: nouveau`

**Fix.** Blacklist nouveau (and nova_core), rebuild the initial RAM disk, restart; by hand.

**Source.** NVIDIA driver README, chapter 8; NVIDIA/open-gpu-kernel-modules: nv.c.
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix
from flatout.schema.machine import Machine


def check(case: Case) -> Finding | None:
    """The other driver is named as the owner."""
    if not case.sees("other-driver-owns", "nouveau-active", "owner-suspected"):
        return None
    return Finding(
        rule="nouveau-owns-gpu",
        severity="error" if case.sees("other-driver-owns", "owner-suspected") else "warning",
        certainty="decided" if case.sees("other-driver-owns") else "likely",
        problem="nouveau (or nova) has claimed the GPU, so NVIDIA's driver cannot use it.",
        because="a device has only one driver, and that one was loaded first",
        evidence=case.evidence("other-driver-owns", "nouveau-active", "owner-suspected"),
        fixes=(
            Fix(
                text="keep nouveau and nova_core from loading, then restart",
                commands=(
                    "printf 'blacklist nouveau\\nblacklist nova_core\\n' | "
                    "sudo tee /etc/modprobe.d/flatout-no-nouveau.conf",
                    "sudo update-initramfs -u",
                    "sudo reboot",
                ),
                where="host",
                changes="which modules the kernel loads at boot",
                undo="sudo rm /etc/modprobe.d/flatout-no-nouveau.conf",
            ),
        ),
        confirm=("lspci -nnk | grep -A3 -i nvidia", "lsmod | grep -E 'nouveau|nova'"),
    )


def _in_facts(machine: Machine) -> Facts:
    """The PCI bus names the owner."""
    module = machine.module
    if module is None or module.owner not in ("nouveau", "nova_core", "nova-core"):
        return ()
    return fact(f"{module.owner} is bound to the GPU", "/sys/bus/pci")


RULE = Rule(
    check=check,
    prior=55,
    fact_checks=(
        FactCheck(sign="other-driver-owns", read=_in_facts),
    ),
    signatures=(
        signature(
            "other-driver-owns",
            "Kernel driver in use", "already bound to", "Nouveau kernel driver", "nouveau",
            "NovaCore", "nova_core",
            pattern=r"driver in use: (?:nouveau|nova)|already bound to (?:nouveau|nova)"
            r"|Nouveau kernel driver .{0,30}in use|(?:driver|configuration:?) ?[:=] ?nouveau"
            r"|conflicting.{0,60}nouveau|nouveau.{0,40}conflicts with",
        ),
        # The message of NVIDIA's module if it was not bound to an existing card.
        signature("owner-suspected", "obtained ownership of the NVIDIA device"),
        signature(
            "nouveau-active",
            "nouveau",
            pattern=r"^nouveau\s+\d{5,}\s+\d+|\bnouveau \d{4}:[\da-f]{2}:|nouveaudrmfb",
        ),
    ),
    explains=("nvidia-module-not-built-for-kernel", "host-nvidia-driver-missing",
              "secure-boot-rejects-module"),
)  # fmt: skip
