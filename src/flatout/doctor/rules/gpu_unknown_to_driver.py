"""The installed driver does not know this card: too new or too old for it.

**Checks.** The kernel module's words about a card that this release does not support. On the
machine: a card older than Turing under a driver of a branch after R580, its last.

**Why it matters.** Each driver branch serves certain generations: 470 is the last for Kepler, 580
for Maxwell, Pascal and Volta; a new card needs the branch it came with, or a later one.

**Example.** `The NVIDIA GPU installed in this system is not supported by the
NVIDIA 590.44.01 driver release`

**Fix.** The branch for this card: newer for a new one, the legacy branch for an old one; asked
first.

**Source.** https://www.nvidia.com/en-us/drivers/unix/legacy-gpu; each driver's README, appendix A.
"""

from __future__ import annotations

from flatout.doctor.reading import Facts, Reading, fact, version
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Finding, Fix
from flatout.nouns.machine import Machine


def check(case: Case) -> Finding | None:
    """The module says so."""
    if not case.sees("card-unsupported"):
        return None
    legacy = case.value("card-unsupported", "legacy")
    package = f"nvidia-driver-{legacy}" if legacy else None
    return Finding(
        rule="gpu-unknown-to-driver",
        severity="error",
        problem="The installed NVIDIA driver does not support this card.",
        because=f"the card belongs to the driver branch {legacy}" if legacy else None,
        evidence=case.evidence("card-unsupported", "kernel-module-version"),
        fixes=(
            Fix(
                text="install the branch of the driver that serves this card",
                safety="ask",
                commands=(
                    "ubuntu-drivers devices",
                    f"sudo apt-get install {package}" if package else "sudo ubuntu-drivers install",
                    "sudo reboot",
                ),
                where="host",
                changes="replaces the driver; a restart follows",
            ),
        ),
        confirm=("lspci -nn -d 10de:", "ubuntu-drivers devices"),
    )


def _in_facts(machine: Machine) -> Facts:
    """Maxwell, Pascal or Volta, whose last branch is R580, under a later one."""
    module = machine.module
    installed = (module.loaded or module.installed) if module else None
    if module is None or machine.gpus or version(installed)[:1] <= (580,):
        return ()
    # PCI ids from GM107 on to before TU102.
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
    readings=(Reading(sign="card-unsupported", read=_in_facts),),
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
