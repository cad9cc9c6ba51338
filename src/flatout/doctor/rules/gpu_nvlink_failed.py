"""An NVLink between GPUs is failing.

**Checks.** Xid 74 and related events, CUDA's NVLink error (220), and links whose training failed.
On the machine: Xid 74 in the kernel's log.

**Why it matters.** Programs on the GPUs of that link are terminated, and others that exchange data
over it hang.

**Example.** `CUDA error: uncorrectable NVLink error detected during the execution`

**Fix.** Reset the GPUs or restart; if the error returns, have the bridge or board checked; asks
first.

**Source.** https://docs.nvidia.com/deploy/xid-errors (74, 144 to 150);
https://docs.nvidia.com/cuda/cuda-runtime-api, cudaErrorNvlinkUncorrectable
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, seen_xids
from flatout.doctor.rule import Case, Rule
from flatout.doctor.scan.xid import xid
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix
from flatout.schema.machine import Machine


def check(case: Case) -> Finding | None:
    """CUDA or the kernel reports it."""
    if not case.sees("xid-nvlink", "cuda-nvlink-error"):
        return None
    return Finding(
        rule="gpu-nvlink-failed",
        severity="error",
        problem="An NVLink between GPUs is failing.",
        evidence=case.evidence("xid-nvlink", "cuda-nvlink-error"),
        fixes=(
            Fix(
                text="restart the machine; if the error returns, have the bridge or board checked",
                safety="ask",
                commands=("sudo reboot",),
                where="host",
                changes="stops every running program",
            ),
        ),
        confirm=("nvidia-smi nvlink --status", "nvidia-smi nvlink -e"),
    )


def _in_facts(machine: Machine) -> Facts:
    """NVLink Xid events since the last boot."""
    return seen_xids(machine, (74,))


RULE = Rule(
    check=check,
    prior=55,
    fact_checks=(FactCheck(sign="xid-nvlink", read=_in_facts, severity="warning"),),
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
