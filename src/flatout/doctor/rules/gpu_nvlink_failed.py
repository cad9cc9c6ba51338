"""A link between GPUs (NVLink) fails.

**Checks.** Xid 74 and its kin, CUDA's NVLink error (220), and links that training gave up. On the
machine: Xid 74 in the kernel's log.

**Why it matters.** Programs on the GPUs of that link are ended, and others that exchange data over
it hang.

**Example.** `CUDA error: uncorrectable NVLink error detected during the execution`

**Fix.** Reset the GPUs or restart; if it comes back, have bridge or board checked; asked first.

**Source.** https://docs.nvidia.com/deploy/xid-errors (74, 144 to 150);
https://docs.nvidia.com/cuda/cuda-runtime-api, cudaErrorNvlinkUncorrectable
"""

from __future__ import annotations

from flatout.doctor.logs.xid import xid
from flatout.doctor.reading import Facts, Reading, seen_xids
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Finding, Fix
from flatout.nouns.machine import Machine


def check(case: Case) -> Finding | None:
    """CUDA or the kernel says so."""
    if not case.sees("xid-nvlink", "cuda-nvlink-error"):
        return None
    return Finding(
        rule="gpu-nvlink-failed",
        severity="error",
        problem="A link between GPUs (NVLink) fails.",
        evidence=case.evidence("xid-nvlink", "cuda-nvlink-error"),
        fixes=(
            Fix(
                text="restart the machine; if it comes back, have the bridge or board checked",
                safety="ask",
                commands=("sudo reboot",),
                where="host",
                changes="ends everything that runs",
            ),
        ),
        confirm=("nvidia-smi nvlink --status", "nvidia-smi nvlink -e"),
    )


def _in_facts(machine: Machine) -> Facts:
    """Xid events of NVLink since the last start."""
    return seen_xids(machine, (74,))


RULE = Rule(
    check=check,
    prior=55,
    readings=(Reading(sign="xid-nvlink", read=_in_facts, severity="warning"),),
    signatures=(
        xid("xid-nvlink", 74, 144, 145, 146, 147, 148, 149, 150),
        signature(
            "cuda-nvlink-error",
            "uncorrectable NVLink error",
            "CUDA_ERROR_NVLINK_UNCORRECTABLE",
            "cudaErrorNvlinkUncorrectable",
            "NVLink: fatal error",
        ),
    ),
)
