"""A power cable of the GPU is not plugged in.

**Checks.** The driver's message about power connectors.

**Why it matters.** A card without all of its power cables does not start.

**Example.** `NVRM: GPU 0000:01:00.0: GPU does not have the necessary power cables connected.`

**Fix.** Plug in all power cables, a separate one from the power supply for each connector; by hand.

**Source.** https://docs.nvidia.com/deploy/xid-errors (Xid 54)
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.scan.xid import xid
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """The driver reports missing cables."""
    if not case.sees("xid-auxiliary-power", "power-cable-missing"):
        return None
    return Finding(
        rule="gpu-power-cable-missing",
        severity="error",
        problem="A power cable of the GPU is not plugged in.",
        evidence=case.evidence("xid-auxiliary-power", "power-cable-missing"),
        fixes=(Fix(text="switch off, and plug in every power cable of the card", where="host"),),
    )


RULE = Rule(
    check=check,
    prior=75,
    signatures=(
        xid("xid-auxiliary-power", 54),
        signature(
            "power-cable-missing",
            "power cables",
            "power connectors",
            "auxiliary power",
            pattern=r"necessary power cables|NVRM.{0,80}power connectors?.{0,40}(?:not|missing)"
            r"|auxiliary power.{0,20}not connected",
        ),
    ),
    explains=("gpu-fallen-off-bus",),
)
