"""nouveau, or its successor nova, holds the GPU.

**Checks.** The kernel driver in use as lspci tells, the kernel's lines of a device already bound,
and the installer's complaint. On the machine: the module that holds the card, as the PCI bus tells.

**Why it matters.** A device has one driver. While nouveau or nova_core holds it, NVIDIA's finds
none.

**Example.** `Kernel driver in use: nouveau`

**Fix.** Blacklist nouveau (and nova_core), rebuild the initial RAM disk, restart; by hand.

**Source.** NVIDIA driver README, chapter 8; NVIDIA/open-gpu-kernel-modules: nv.c.
"""

from __future__ import annotations

from flatout.doctor.reading import Facts, Reading, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Finding, Fix
from flatout.nouns.machine import Machine


def check(case: Case) -> Finding | None:
    """Something names the other driver as the owner."""
    if not case.sees("other-driver-owns", "nouveau-active", "owner-suspected"):
        return None
    return Finding(
        rule="nouveau-owns-gpu",
        severity="error" if case.sees("other-driver-owns", "owner-suspected") else "warning",
        certainty="decided" if case.sees("other-driver-owns") else "likely",
        problem="nouveau (or nova) holds the GPU, so NVIDIA's driver cannot.",
        because="a device has one driver, and that one was first",
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
                changes="what the kernel loads at start",
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
    return fact(f"{module.owner} holds the GPU", "/sys/bus/pci")


RULE = Rule(
    check=check,
    prior=55,
    readings=(
        Reading(sign="other-driver-owns", read=_in_facts),
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
        # What NVIDIA's module says where it was not asked to drive a card that is there.
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
