"""The GPU's firmware processor (GSP) does not respond to the driver.

**Checks.** Xid 119, 120, 61 and 62, and the kernel's lines about a GSP that timed out. On the
machine: Xid 119 and 120 in the kernel's log.

**Why it matters.** Since driver 510, parts of the driver run on the card's GSP. When it hangs,
nvidia-smi and CUDA hang or lose the GPU until it is reset.

**Example.** `NVRM: Xid (PCI:0000:5e:00): 119, Timeout waiting for RPC from GSP!`

**Fix.** Reset the GPU or restart, then install a newer driver; asks first.

**Source.** https://docs.nvidia.com/deploy/xid-errors (119, 120);
https://github.com/NVIDIA/open-gpu-kernel-modules/issues/446
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, seen_xids
from flatout.doctor.rule import Case, Rule
from flatout.doctor.scan.xid import xid
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix
from flatout.schema.machine import Machine


def check(case: Case) -> Finding | None:
    """The firmware timed out."""
    if not case.sees("xid-gsp", "gsp-timeout"):
        return None
    return Finding(
        rule="gpu-firmware-not-responding",
        severity="error",
        problem="The GPU's firmware processor (GSP) does not respond to the driver.",
        evidence=case.evidence("xid-gsp", "gsp-timeout"),
        fixes=(
            Fix(
                text="restart the machine, and install a newer driver if the error returns",
                safety="ask",
                commands=("sudo reboot",),
                where="host",
                changes="stops every running program",
            ),
        ),
        confirm=("sudo dmesg | grep -iE 'xid|gsp'", "nvidia-smi -q | grep -i gsp"),
    )


def _in_facts(machine: Machine) -> Facts:
    """GSP Xid events since the last boot."""
    return seen_xids(machine, (119, 120))


RULE = Rule(
    check=check,
    prior=55,
    fact_checks=(FactCheck(sign="xid-gsp", read=_in_facts, severity="warning"),),
    signatures=(
        xid("xid-gsp", 61, 62, 119, 120),
        signature(
            "gsp-timeout",
            "GSP",
            pattern=r"(?:RPC (?:response )?from (?:GPU\d+ )?GSP|GSP.{0,40}RPC.{0,20}timed? ?out"
            r"|GSP (?:error|task (?:exception|timeout)|heartbeat.{0,10}(?:timed out|lost)))",
        ),
    ),
    explains=("gpu-fallen-off-bus",),
)
