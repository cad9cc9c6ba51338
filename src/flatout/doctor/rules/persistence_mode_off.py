"""The driver unloads a GPU's state whenever no program uses it.

**Checks.** On the machine: NVML's persistence mode, on native Linux with cards that drive no
display.

**Why it matters.** Without persistence, the first program after a pause waits a second or more per
card for it to start, and settings such as power limits are lost.

**Example.** `GPU 0: persistence is off`

**Fix.** Enable it, or run nvidia-persistenced; asks first. Reported as a note.

**Source.** docs.nvidia.com/deploy/driver-persistence.
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact
from flatout.doctor.rule import Case, Rule
from flatout.schema.finding import Finding, Fix
from flatout.schema.machine import Machine


def check(case: Case) -> Finding | None:
    """Persistence mode is off."""
    if not case.sees("persistence-off"):
        return None
    return Finding(
        rule="persistence-mode-off",
        severity="note",
        problem="The driver stops a GPU when no program uses it, and starts it again each time.",
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
                changes="starts a service, and sets the GPUs' mode until the next boot",
                undo="sudo systemctl disable --now nvidia-persistenced; sudo nvidia-smi -pm 0",
            ),
        ),
        confirm=("nvidia-smi -q | grep Persistence",),
    )


def _in_facts(machine: Machine) -> Facts:
    """Persistence is off, on cards that drive no display."""
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
    fact_checks=(FactCheck(sign="persistence-off", read=_in_facts, severity="note"),),
)
