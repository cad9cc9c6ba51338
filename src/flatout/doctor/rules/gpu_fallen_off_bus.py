"""A GPU no longer responds on the PCI Express bus.

**Checks.** The kernel's "fallen off the bus" (Xid 79), NVML's "GPU is lost", an adapter that cannot
be initialized, and a device whose PCI registers read all ones. On the machine: Xid 79 in the
kernel's log.

**Why it matters.** The card is unreachable until the machine restarts. The cause is the power
supply or cables, heat, a riser, the slot or the card itself, rarely the driver.

**Example.** `NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.`

**Fix.** Power the machine off and on; if the error returns, check power, heat and seating; by hand.

**Source.** https://docs.nvidia.com/deploy/xid-errors (Xid 79); nvmlReturn_t,
NVML_ERROR_GPU_IS_LOST.
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, seen_xids
from flatout.doctor.rule import Case, Rule
from flatout.doctor.scan.xid import xid
from flatout.doctor.signature import signature
from flatout.schema.finding import Certainty, Finding, Fix
from flatout.schema.machine import Machine

_LOST = ("xid-fallen-off-bus", "gpu-lost", "pci-reads-ones")
_NOT_STARTED = ("adapter-not-initialized", "gpu-not-attached", "smi-no-handle")


def check(case: Case) -> Finding | None:
    """The driver reports that the card is gone, or cannot start it."""
    if not case.sees(*_LOST, *_NOT_STARTED):
        return None
    certainty: Certainty = "decided" if case.sees(*_LOST) else "likely"
    return Finding(
        rule="gpu-fallen-off-bus",
        severity="error",
        certainty=certainty,
        problem="A GPU does not respond on the PCI Express bus."
        if case.sees(*_LOST)
        else "The driver cannot start a GPU: it barely responds on the PCI Express bus.",
        because="the cause is power, cables, heat, a riser, the slot or the card; rarely software",
        evidence=case.evidence(*_LOST, *_NOT_STARTED),
        fixes=(
            Fix(
                text=(
                    "power the machine off, wait, and power it on; then check power cables,"
                    " power supply, temperatures and seating, and try the card in another "
                    "slot"
                ),
                where="host",
            ),
        ),
        confirm=(
            "sudo dmesg | grep -iE 'xid|fallen off|RmInitAdapter|AER'",
            "lspci -d 10de: -vv | grep -E 'LnkSta|rev ff'",
        ),
    )


def _in_facts(machine: Machine) -> Facts:
    """Xid 79 since the last boot: only a reboot brings the card back."""
    return seen_xids(machine, (79,))


RULE = Rule(
    check=check,
    prior=60,
    fact_checks=(FactCheck(sign="xid-fallen-off-bus", read=_in_facts),),
    signatures=(
        xid("xid-fallen-off-bus", 79),
        signature(
            "gpu-lost",
            "fallen off the bus",
            "GPU is lost",
            "NVML_ERROR_GPU_IS_LOST",
            "NVMLError_GpuIsLost",
            "GPU_IS_LOST",
        ),
        signature(
            "pci-reads-ones",
            "rev ff",
            "device inaccessible",
            "config space inaccessible",
            "Unknown header type",
            pattern=r"(?:NVIDIA|3D controller|VGA compatible).{0,120}\(rev ff\)"
            r"|nvidia.{0,60}(?:D3cold|D3hot) to D0.{0,20}(?:device|space) inaccessible"
            r"|nvidia.{0,60}D0 \(config space inaccessible\)",
        ),
        signature(
            "adapter-not-initialized",
            "RmInitAdapter",
            "rm_init_adapter",
            pattern=r"RmInitAdapter failed|rm_init_adapter failed",
        ),
        signature("gpu-not-attached", "Cannot attach gpu", "osInitNvMapping failed"),
    ),
    explains=(
        "cuda-visible-devices-wrong",
        "host-nvidia-driver-missing",
        "nvidia-module-not-built-for-kernel",
    ),
)
