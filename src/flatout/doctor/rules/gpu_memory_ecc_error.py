"""The GPU's memory has errors that ECC could not correct.

**Checks.** CUDA's ECC error (214), Xid 48, 64, 94, 95, and pages or rows pending a reset. On the
machine: those Xid events in the kernel's log.

**Why it matters.** The data in that memory is lost, and the program is terminated. A card remaps
bad rows when it is reset; if it no longer can, it must be replaced.

**Example.** `CUDA error: uncorrectable ECC error encountered`

**Fix.** Reset the GPU or restart; asks first. If the error returns, have the card replaced.

**Source.** https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt;
https://docs.nvidia.com/deploy/xid-errors
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, seen_xids
from flatout.doctor.rule import Case, Rule
from flatout.doctor.scan.xid import xid
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix
from flatout.schema.machine import Machine

_ERRORS = ("cuda-ecc-error", "xid-ecc", "row-remapping-failed")
_PENDING = ("xid-row-remapped", "pages-pending")


def check(case: Case) -> Finding | None:
    """A program was terminated by it, or the card waits for a reset."""
    if not case.sees(*_ERRORS, *_PENDING):
        return None
    has_failed = case.sees(*_ERRORS)
    return Finding(
        rule="gpu-memory-ecc-error",
        severity="error" if has_failed else "warning",
        problem="The GPU's memory has errors that could not be corrected."
        if has_failed
        else "The GPU has retired bad memory and needs a reset.",
        evidence=case.evidence(*_ERRORS, *_PENDING),
        fixes=(
            Fix(
                text="stop the programs that use the GPU, and reset it",
                safety="ask",
                commands=("sudo nvidia-smi --gpu-reset -i 0",),
                where="host",
                changes="stops everything on that GPU; give its index after -i",
            ),
        ),
        confirm=("nvidia-smi -q -d ECC,PAGE_RETIREMENT,ROW_REMAPPER",),
    )


def _in_facts(machine: Machine) -> Facts:
    """Memory Xid events since the last boot."""
    return seen_xids(machine, (48, 64, 94, 95))


RULE = Rule(
    check=check,
    prior=60,
    fact_checks=(FactCheck(sign="xid-ecc", read=_in_facts, severity="warning"),),
    signatures=(
        signature(
            "cuda-ecc-error",
            "uncorrectable ECC error encountered",
            "CUDA_ERROR_ECC_UNCORRECTABLE",
            "cudaErrorECCUncorrectable",
            "Double Bit ECC Error",
        ),
        xid("xid-ecc", 48, 64, 94, 95, 140),
        xid("xid-row-remapped", 63),
        signature(
            "row-remapping-failed",
            "Remapping Failure Occurred",
            "Remapping Failure",
            pattern=r"Remapping Failure(?: Occurred)?\s*: Yes",
        ),
        signature(
            "pages-pending",
            "Pending",
            pattern=r"^\s*(?:Pending(?: Page Blacklist)?|Remapped rows pending)\s*: Yes",
        ),
    ),
    explains=("gpu-kernel-faulted",),
)
