"""A modprobe setting or kernel parameter prevents the NVIDIA module from loading.

**Checks.** `blacklist nvidia`, `install nvidia /bin/false`, `module_blacklist=nvidia`, and
prime-select set to the other GPU. On the machine: the same lines in modprobe's folders, if there is
a card but no module is loaded.

**Why it matters.** The driver is completely installed but never loaded.

**Example.** `/etc/modprobe.d/blacklist-nvidia.conf: blacklist nvidia`

**Fix.** Remove the line, rebuild the initramfs, and restart; by hand.

**Source.** modprobe.d(5); kernel-parameters, module_blacklist.
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix
from flatout.schema.machine import Machine


def check(case: Case) -> Finding | None:
    """The setting itself was seen."""
    if not case.sees("module-switched-off", "prime-selects-other"):
        return None
    return Finding(
        rule="nvidia-module-blacklisted",
        severity="error",
        certainty="decided" if case.sees("module-switched-off") else "likely",
        problem="A setting prevents the NVIDIA module from loading.",
        because="the module is blacklisted, or the other GPU is selected",
        evidence=case.evidence("module-switched-off", "prime-selects-other"),
        fixes=(
            Fix(
                text="remove the setting (prime-select: select nvidia), then restart",
                commands=(
                    "grep -rn 'nvidia' /etc/modprobe.d /lib/modprobe.d",
                    "sudo update-initramfs -u",
                    "sudo reboot",
                ),
                where="host",
                changes="which modules the kernel loads at boot",
                undo="restore the setting",
            ),
        ),
        confirm=("grep -rn nvidia /etc/modprobe.d", "cat /proc/cmdline"),
    )


def _in_facts(machine: Machine) -> Facts:
    """modprobe is configured not to load the module, and it is not loaded."""
    module = machine.module
    if module is None or module.loaded or not module.is_blacklisted or not module.pci_devices:
        return ()
    return fact("the nvidia module is disabled", "/etc/modprobe.d")


RULE = Rule(
    check=check,
    prior=50,
    fact_checks=(
        FactCheck(sign="module-switched-off", read=_in_facts),
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
