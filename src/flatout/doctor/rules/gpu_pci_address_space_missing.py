"""The firmware assigned the GPU no addresses on the PCI bus.

**Checks.** The driver's "PCI I/O region ... is invalid", and the kernel's regions (BARs) that could
not be assigned.

**Why it matters.** A card with much memory needs a large address window below or above 4 GiB. Old
firmware settings, many cards, or a virtual machine leave too little, and the driver cannot start
the card.

**Example.** `NVRM: This PCI I/O region assigned to your NVIDIA device is invalid`

**Fix.** Enable "Above 4G decoding" in the firmware, or else boot with the kernel parameter
`pci=realloc`; by hand.

**Source.** https://docs.kernel.org/admin-guide/kernel-parameters.html (pci=realloc);
https://github.com/NVIDIA/open-gpu-kernel-modules, nv-pci.c
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """The driver rejects the region; the kernel's own lines also occur on healthy machines."""
    is_explicit = case.sees("pci-region-invalid")
    if not is_explicit and not case.sees("bar-not-assigned"):
        return None
    return Finding(
        rule="gpu-pci-address-space-missing",
        severity="error" if is_explicit else "note",
        certainty="decided" if is_explicit else "possible",
        problem="The firmware assigned the GPU no valid addresses on the PCI bus.",
        evidence=case.evidence("pci-region-invalid", "bar-not-assigned"),
        fixes=(
            Fix(
                text=(
                    'enable "Above 4G decoding" (or "large BAR") in the firmware, or boot '
                    "the kernel with pci=realloc"
                ),
                where="host",
            ),
        ),
        confirm=("sudo dmesg | grep -iE 'BAR|NVRM'", "lspci -d 10de: -vv | grep Region"),
    )


RULE = Rule(
    check=check,
    prior=70,
    signatures=(
        signature(
            "pci-region-invalid",
            "assigned to your NVIDIA device is invalid",
            "system BIOS may have misconfigured your GPU",
            pattern=r"NVIDIA device is invalid|misconfigured your GPU",
        ),
        signature(
            "bar-not-assigned",
            "BAR",
            pattern=r"pci.{0,30}BAR \d.{0,60}(?:no space for|failed to assign|can't assign)",
        ),
    ),
    explains=("gpu-fallen-off-bus", "nvidia-module-not-built-for-kernel"),
)
