"""Secure Boot rejects the NVIDIA module.

**Checks.** The kernel's errors about an unsigned module, and Secure Boot's state. On the machine:
Secure Boot is on, and the module is built but not loaded.

**Why it matters.** With Secure Boot on, the kernel loads only modules with a known signature. A
locally built module is signed with a key that must be enrolled first.

**Example.** `modprobe: ERROR: could not insert 'nvidia': Key was rejected by service`

**Fix.** Enroll the key (`mokutil --import`), or disable Secure Boot in the firmware; by hand.

**Source.** kernel/module/signing.c; Ubuntu wiki, UEFI/SecureBoot.
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Certainty, Finding, Fix
from flatout.schema.machine import Machine


def check(case: Case) -> Finding | None:
    """A rejected key, Secure Boot with a module that does not load, or a good build that fails."""
    is_silent = case.sees("module-not-loaded", "smi-cannot-communicate", "nvml-driver-not-loaded")
    is_on = case.sees("secure-boot-on") or (
        case.machine.module is not None and case.machine.module.is_secure_boot_on
    )
    certainty: Certainty
    if case.sees("module-key-refused"):
        certainty = "decided"
    elif is_on and is_silent:
        certainty = "decided" if case.sees("secure-boot-on") else "likely"
    elif case.sees("module-not-loaded") and case.sees("module-built"):
        # It was built against the right sources, so the kernel has another reason to reject it.
        certainty = "likely"
    elif case.sees("module-not-loaded"):
        certainty = "possible"
    else:
        return None
    return Finding(
        rule="secure-boot-rejects-module",
        severity="error",
        certainty=certainty,
        problem="Secure Boot rejects the NVIDIA kernel module.",
        because="it is unsigned, or signed with a key that the firmware does not trust",
        evidence=case.evidence(
            "module-key-refused", "secure-boot-on", "module-not-loaded", "module-built"
        ),
        fixes=(
            Fix(
                text=(
                    "enroll the key that signs the module; the firmware asks for its "
                    "password at the next boot"
                ),
                commands=(
                    "mokutil --sb-state",
                    "sudo mokutil --import /var/lib/shim-signed/mok/MOK.der",
                    "sudo reboot",
                ),
                where="host",
                changes="the keys that the firmware trusts",
                undo="sudo mokutil --delete /var/lib/shim-signed/mok/MOK.der",
            ),
        ),
        confirm=("mokutil --sb-state", "sudo dmesg | grep -iE 'nvidia|lockdown|signature'"),
    )


def _in_facts(machine: Machine) -> Facts:
    """Secure Boot is on, and an existing module is not loaded."""
    module = machine.module
    if module is None or not module.is_secure_boot_on or not module.is_built:
        return ()
    if module.loaded or not module.pci_devices or module.is_blacklisted or module.owner:
        return ()
    return (
        *fact("Secure Boot is on", "the firmware's variables"),
        *fact("the nvidia module exists but is not loaded", "modinfo"),
    )


RULE = Rule(
    check=check,
    prior=50,
    fact_checks=(FactCheck(sign="module-key-refused", read=_in_facts, certainty="likely"),),
    signatures=(
        signature(
            "module-key-refused",
            "Key was rejected by service",
            "Required key not available",
            "unsigned module",
            "PKCS",
            "signed with a trusted key",
            # Not its messages about modules other than NVIDIA's.
            pattern=r"(?:^(?!.*could not insert)"
            r"|could not insert \S{0,12}\s?\S{0,60}nvidia).{0,300}"
            r"(?:Key was rejected by service|Required key not available)|Loading of unsigned"
            r" module|unsigned module loading is restricted|not signed with a trusted key",
        ),
        signature(
            "secure-boot-on",
            "SecureBoot",
            "Secure Boot",
            "Secureboot",
            pattern=r"Secure ?Boot:? (?:is |state:? ?)?(?:enabled|on|active)\b",
        ),
        signature(
            "module-built",
            "Building kernel modules",
            "kernel module compilation complete",
            pattern=r"\] 100%|Building kernel modules[^\n]{0,20}\n[^\n]{0,120}100%"
            r"|compilation complete",
            lines=2,
        ),
    ),
    explains=("nvidia-module-not-built-for-kernel", "host-nvidia-driver-missing"),
)
