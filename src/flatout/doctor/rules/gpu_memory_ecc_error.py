"""The GPU's memory has errors that ECC could not correct.

**Checks.** CUDA's ECC error (214), Xid 48, 64, 94, 95, and pages or rows that wait for a reset. On
the machine: those Xid events in the kernel's log.

**Why it matters.** What was in that memory is lost, and the program is ended. A card remaps bad
rows when it is reset; one that cannot any more must be replaced.

**Example.** `CUDA error: uncorrectable ECC error encountered`

**Fix.** Reset the GPU or restart; asked first. If it comes back, have the card replaced.

**Source.** https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt;
https://docs.nvidia.com/deploy/xid-errors
"""

from __future__ import annotations

from flatout.doctor.logs.xid import xid
from flatout.doctor.reading import Facts, Reading, seen_xids
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Finding, Fix
from flatout.nouns.machine import Machine

_ERRORS = ("cuda-ecc-error", "xid-ecc", "row-remapping-failed")
_PENDING = ("xid-row-remapped", "pages-pending")


def check(case: Case) -> Finding | None:
    """A program was ended by it, or the card waits for its reset."""
    if not case.sees(*_ERRORS, *_PENDING):
        return None
    has_failed = case.sees(*_ERRORS)
    return Finding(
        rule="gpu-memory-ecc-error",
        severity="error" if has_failed else "warning",
        problem="The GPU's memory has errors that could not be corrected."
        if has_failed
        else "The GPU has set bad memory aside, and waits for a reset.",
        evidence=case.evidence(*_ERRORS, *_PENDING),
        fixes=(
            Fix(
                text="end what uses the GPU, and reset it",
                safety="ask",
                commands=("sudo nvidia-smi --gpu-reset -i 0",),
                where="host",
                changes="ends what runs on that GPU; name its index after -i",
            ),
        ),
        confirm=("nvidia-smi -q -d ECC,PAGE_RETIREMENT,ROW_REMAPPER",),
    )


def _in_facts(machine: Machine) -> Facts:
    """Xid events of memory since the last start."""
    return seen_xids(machine, (48, 64, 94, 95))


RULE = Rule(
    check=check,
    prior=60,
    readings=(Reading(sign="xid-ecc", read=_in_facts, severity="warning"),),
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
