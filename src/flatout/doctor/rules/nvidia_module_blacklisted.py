"""A setting of modprobe or the boot line keeps the NVIDIA module from loading.

**Checks.** `blacklist nvidia`, `install nvidia /bin/false`, `module_blacklist=nvidia`, and
prime-select set to the other GPU. On the machine: the same lines in modprobe's folders, where a
card is and no module is loaded.

**Why it matters.** The driver is installed and whole, and yet never loaded.

**Example.** `/etc/modprobe.d/blacklist-nvidia.conf: blacklist nvidia`

**Fix.** Take the line out, rebuild the initial RAM disk, restart; by hand.

**Source.** modprobe.d(5); kernel-parameters, module_blacklist.
"""

from __future__ import annotations

from flatout.doctor.reading import Facts, Reading, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Finding, Fix
from flatout.nouns.machine import Machine


def check(case: Case) -> Finding | None:
    """The line itself."""
    if not case.sees("module-switched-off", "prime-selects-other"):
        return None
    return Finding(
        rule="nvidia-module-blacklisted",
        severity="error",
        certainty="decided" if case.sees("module-switched-off") else "likely",
        problem="A setting keeps the NVIDIA module from being loaded.",
        because="the module is blacklisted, or the other GPU is selected",
        evidence=case.evidence("module-switched-off", "prime-selects-other"),
        fixes=(
            Fix(
                text="take the line out (prime-select: choose nvidia), then restart",
                commands=(
                    "grep -rn 'nvidia' /etc/modprobe.d /lib/modprobe.d",
                    "sudo update-initramfs -u",
                    "sudo reboot",
                ),
                where="host",
                changes="what the kernel loads at start",
                undo="put the line back",
            ),
        ),
        confirm=("grep -rn nvidia /etc/modprobe.d", "cat /proc/cmdline"),
    )


def _in_facts(machine: Machine) -> Facts:
    """modprobe is told not to load it, and it is not loaded."""
    module = machine.module
    if module is None or module.loaded or not module.is_blacklisted or not module.pci_devices:
        return ()
    return fact("the module nvidia is switched off", "/etc/modprobe.d")


RULE = Rule(
    check=check,
    prior=50,
    readings=(
        Reading(sign="module-switched-off", read=_in_facts),
    ),
    signatures=(
        signature(
            "module-switched-off",
            "nvidia",
            pattern=r"\bblacklist\s+nvidia(?:[-_](?:drm|uvm|modeset|current))?\s*$"
            r"|\binstall\s+nvidia\S*\s+/(?:usr/)?bin/(?:false|true)|\balias\s+nvidia\S*\s+off\b"
            r"|(?:module_blacklist|modprobe\.blacklist|rd\.driver\.blacklist)=\S*\bnvidia\b"
            r"|Module nvidia\S* is (?:blacklisted|blocked)|'nvidia'.{0,40}is blacklisted",
        ),
        signature(
            "prime-selects-other",
            "prime-select",
            pattern=r"prime-select (?:query)?\s{0,3}(?:intel|on-demand)$|prime-select intel",
            lines=2,
        ),
    ),
    explains=("nvidia-module-not-built-for-kernel", "host-nvidia-driver-missing",
              "nouveau-owns-gpu"),
)  # fmt: skip
