"""The driver unloads a GPU's state whenever nobody uses it.

**Checks.** On the machine: NVML's persistence mode, on a native Linux whose cards light no screen.

**Why it matters.** Without persistence the first program after a pause waits for the card to start,
a second and more each, and settings such as power limits are lost.

**Example.** `GPU 0: persistence is off`

**Fix.** Switch it on, or let nvidia-persistenced run; asked first. A note.

**Source.** docs.nvidia.com/deploy/driver-persistence.
"""

from __future__ import annotations

from flatout.doctor.reading import Facts, Reading, fact
from flatout.doctor.rule import Case, Rule
from flatout.nouns.finding import Finding, Fix
from flatout.nouns.machine import Machine


def check(case: Case) -> Finding | None:
    """It is off."""
    if not case.sees("persistence-off"):
        return None
    return Finding(
        rule="persistence-mode-off",
        severity="note",
        problem="The driver stops a GPU when nobody uses it, and starts it again each time.",
        evidence=case.evidence("persistence-off"),
        fixes=(
            Fix(
                text="let the driver keep the GPUs ready",
                safety="ask",
                commands=(
                    "sudo systemctl enable --now nvidia-persistenced",
                    "sudo nvidia-smi -pm 1",
                ),
                where="host",
                changes="a service, and the GPUs' mode until the next start",
                undo="sudo systemctl disable --now nvidia-persistenced; sudo nvidia-smi -pm 0",
            ),
        ),
        confirm=("nvidia-smi -q | grep Persistence",),
    )


def _in_facts(machine: Machine) -> Facts:
    """Off, on cards that light no screen."""
    if (
        machine.module is None
        or machine.host.container
        or any(gpu.has_display is not False for gpu in machine.gpus)
    ):
        return ()
    found = [gpu for gpu in machine.gpus if gpu.is_persistence_on is False]
    return fact(f"GPU {found[0].index}: persistence is off", "NVML") if found else ()


RULE = Rule(
    check=check,
    prior=10,
    readings=(Reading(sign="persistence-off", read=_in_facts, severity="note"),),
)
