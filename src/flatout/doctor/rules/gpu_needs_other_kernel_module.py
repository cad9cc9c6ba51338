"""The card needs the other flavor of the NVIDIA kernel module.

**Checks.** The module's errors about an unsupported card. On the machine: the module's flavor, and
the card's PCI id.

**Why it matters.** NVIDIA's driver has two kernel modules. Cards since Blackwell need the open one;
cards before Turing (GTX 10, V100) need the proprietary one.

**Example.** `requires use of the NVIDIA open kernel modules`

**Fix.** Install the other flavor of the same driver; asks first.

**Source.** https://github.com/NVIDIA/open-gpu-kernel-modules (compatible GPUs);
https://docs.nvidia.com/datacenter/tesla/driver-installation-guide
"""

from __future__ import annotations

from collections.abc import Callable

from flatout.doctor.fact_check import FactCheck, Facts, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Certainty, Finding, Fix
from flatout.schema.machine import Machine

_BLACKWELL = ("RTX 50", "RTX PRO", "B100", "B200", "B300", "GB200")


def check(case: Case) -> Finding | None:
    """The module reports it, or a Blackwell card does not start with the proprietary one."""
    needs_open = case.sees("open-module-required")
    needs_closed = case.sees("open-module-refuses")
    is_blackwell = any(mark in (gpu.name or "") for gpu in case.machine.gpus for mark in _BLACKWELL)
    is_guess = is_blackwell and case.sees("adapter-not-initialized")
    if not needs_open and not needs_closed and not is_guess:
        return None
    certainty: Certainty = "decided" if needs_open or needs_closed else "likely"
    flavour = "proprietary" if needs_closed else "open"
    package = "nvidia-driver-580" if needs_closed else "nvidia-driver-580-open"
    return Finding(
        rule="gpu-needs-other-kernel-module",
        severity="error",
        certainty=certainty,
        problem=f"This card needs the {flavour} NVIDIA kernel module.",
        evidence=case.evidence(
            "open-module-required", "open-module-refuses", "adapter-not-initialized", "gpu-name"
        ),
        fixes=(
            Fix(
                text=f"install the {flavour} flavor of the driver",
                safety="ask",
                commands=(f"sudo apt-get install {package}", "sudo reboot"),
                where="host",
                changes="replaces the driver; restarts the machine",
            ),
        ),
        confirm=("cat /proc/driver/nvidia/version", "modinfo nvidia | grep license"),
    )


def _needs_open(machine: Machine) -> Facts:
    """A Blackwell card with the proprietary module."""
    return _of_flavour(machine, "proprietary", lambda id: 0x2900 <= id < 0x3000)


def _needs_closed(machine: Machine) -> Facts:
    """A card older than Turing with the open module."""
    return _of_flavour(machine, "open", lambda id: 0x1340 <= id < 0x1E00)


def _of_flavour(machine: Machine, flavour: str, is_refused: Callable[[int], bool]) -> Facts:
    module = machine.module
    if module is None or module.flavour != flavour or machine.gpus:
        return ()
    found = [one for one in module.pci_devices or () if is_refused(int(one, 16))]
    if not found:
        return ()
    return (
        *fact(f"NVIDIA device {found[0]}", "/sys/bus/pci"),
        *fact(f"the {flavour} module is installed", "modinfo"),
    )


RULE = Rule(
    check=check,
    prior=80,
    fact_checks=(
        FactCheck(sign="open-module-required", read=_needs_open),
        FactCheck(sign="open-module-refuses", read=_needs_closed),
    ),
    signatures=(
        signature(
            "open-module-required",
            "NVIDIA open kernel modules",
            "open GPU kernel modules",
            "open kernel modules",
            pattern=r"requires? (?:the )?use of the NVIDIA open|requires the (?:NVIDIA )?open"
            r" (?:GPU )?kernel modules",
        ),
        signature(
            "open-module-refuses",
            "open nvidia.ko",
            "Open Kernel Module",
            "GPU System Processor",
            "does not include the required GPU",
            pattern=r"not supported by (?:the )?open nvidia\.ko|does not include the required GPU"
            r"|Open nvidia\.ko is only ready for use on",
        ),
    ),
    explains=("gpu-fallen-off-bus", "nvidia-module-not-built-for-kernel", "gpu-unknown-to-driver"),
)
