"""The installed driver does not support this card: the card is too new or too old.

**Checks.** The kernel module's message about an unsupported card. On the machine: a card older than
Turing with a driver branch after R580, the last that supports it.

**Why it matters.** Each driver branch supports certain generations: 470 is the last for Kepler, 580
for Maxwell, Pascal and Volta; a new card needs the branch it was released with, or a later one.

**Example.** `The NVIDIA GPU installed in this system is not supported by the
NVIDIA 590.44.01 driver release`

**Fix.** Install the branch for this card: a newer one for a new card, a legacy branch for an old
card; asks first.

**Source.** https://www.nvidia.com/en-us/drivers/unix/legacy-gpu; each driver's README, appendix A.
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact, version
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix
from flatout.schema.machine import Machine


def check(case: Case) -> Finding | None:
    """The module reports it."""
    if not case.sees("card-unsupported"):
        return None
    legacy = case.value("card-unsupported", "legacy")
    package = f"nvidia-driver-{legacy}" if legacy else None
    return Finding(
        rule="gpu-unknown-to-driver",
        severity="error",
        problem="The installed NVIDIA driver does not support this card.",
        because=f"the card needs driver branch {legacy}" if legacy else None,
        evidence=case.evidence("card-unsupported", "kernel-module-version"),
        fixes=(
            Fix(
                text="install the driver branch that supports this card",
                safety="ask",
                commands=(
                    "ubuntu-drivers devices",
                    f"sudo apt-get install {package}" if package else "sudo ubuntu-drivers install",
                    "sudo reboot",
                ),
                where="host",
                changes="replaces the driver; restarts the machine",
            ),
        ),
        confirm=("lspci -nn -d 10de:", "ubuntu-drivers devices"),
    )


def _in_facts(machine: Machine) -> Facts:
    """Maxwell, Pascal or Volta, whose last branch is R580, with a later one."""
    module = machine.module
    installed = (module.loaded or module.installed) if module else None
    if module is None or machine.gpus or version(installed)[:1] <= (580,):
        return ()
    # PCI ids from GM107 up to, but not including, TU102.
    old = [one for one in module.pci_devices or () if 0x1340 <= int(one, 16) < 0x1E00]
    if not old:
        return ()
    return (
        *fact(f"driver {installed}", "modinfo"),
        *fact(f"NVIDIA device {old[0]}, whose last driver branch is R580", "/sys/bus/pci"),
    )


RULE = Rule(
    check=check,
    prior=75,
    fact_checks=(FactCheck(sign="card-unsupported", read=_in_facts),),
    signatures=(
        signature(
            "card-unsupported",
            "not supported by the",
            "supported through the NVIDIA",
            "does not appear to have an NVIDIA GPU supported",
            pattern=r"NVIDIA[\s\S]{0,200}not supported by the[\s\S]{0,30}driver release"
            r"|NVRM.{0,60}not supported by the|supported through the NVIDIA (?P<legacy>\d{2,3})"
            r"|does not appear to have an NVIDIA GPU supported by",
            lines=2,
        ),
    ),
    explains=("nvidia-module-not-built-for-kernel", "host-nvidia-driver-missing"),
)
