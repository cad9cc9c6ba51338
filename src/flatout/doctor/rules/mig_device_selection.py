"""MIG instances are counted or selected in a way that CUDA does not support.

**Checks.** MIG together with errors about the number or index of devices. On the machine: MIG is
on, but no instance exists.

**Why it matters.** A process sees only one MIG instance, which CUDA_VISIBLE_DEVICES selects by
UUID. With MIG on and no instance created, it sees none.

**Example.** `device >= 0 && device < num_gpus INTERNAL ASSERT FAILED`, with MIG-3g.40gb

**Fix.** Select one instance: `CUDA_VISIBLE_DEVICES=MIG-<uuid>`; safe.

**Source.** docs.nvidia.com/datacenter/tesla/mig-user-guide/; pytorch/pytorch#130181.
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix
from flatout.schema.machine import Machine

_FAILURES = ("device-count-assert", "device-ordinal", "cuda-no-device", "no-mig-devices")


def check(case: Case) -> Finding | None:
    """MIG is on, and a device is not found."""
    is_empty = case.sees("mig-without-instances")
    if not is_empty and not (case.sees("mig-named") and case.sees(*_FAILURES)):
        return None
    return Finding(
        rule="mig-device-selection",
        severity="error",
        problem="CUDA does not find the MIG instances that the program requests.",
        because="a process sees only one MIG instance, selected by its UUID",
        evidence=case.evidence("mig-without-instances", "mig-named", *_FAILURES),
        fixes=(
            Fix(
                text="create instances of a profile that the card offers",
                safety="ask",
                commands=("sudo nvidia-smi mig -lgip", "sudo nvidia-smi mig -cgi <profile> -C"),
                where="host",
                changes="partitions the card",
                undo="sudo nvidia-smi mig -dci; sudo nvidia-smi mig -dgi",
            )
            if is_empty
            else Fix(
                text="select one instance for each process",
                safety="safe",
                commands=("nvidia-smi -L", "export CUDA_VISIBLE_DEVICES=MIG-<uuid>"),
                changes="only this shell",
                undo="unset CUDA_VISIBLE_DEVICES",
            ),
        ),
        confirm=("nvidia-smi -L", "nvidia-smi mig -lgi"),
    )


def _in_facts(machine: Machine) -> Facts:
    """MIG is on, but no instance exists."""
    return tuple(
        one
        for gpu in machine.gpus
        if gpu.is_mig_on and gpu.num_mig_instances == 0
        for one in fact(f"GPU {gpu.index}: MIG is on, but no instance exists", "NVML")
    )


RULE = Rule(
    check=check,
    prior=60,
    fact_checks=(FactCheck(sign="mig-without-instances", read=_in_facts),),
    signatures=(
        signature(
            "mig-named",
            "MIG",
            "Enabled",
            # The last column of nvidia-smi's table.
            pattern=r"^\|\s+\|\s+\|\s+Enabled\*? \|"
            r"|\bMIG[- ]\d+g\.\d+gb|\bMIG-(?:GPU-)?[\da-f]{8}|MIG M(?:ode|\.)?.{0,20}Enabled"
            r"|MIG mode.{0,30}(?:is )?(?:enabled|on)\b|\bnvidia-smi mig\b|nvidia\.com/mig",
        ),
        signature("no-mig-devices", "No MIG devices found", "No MIG-enabled devices found"),
        signature(
            "device-count-assert",
            "num_gpus",
            "INTERNAL ASSERT FAILED",
            pattern=r"device < num_gpus|device_count.{0,60}INTERNAL ASSERT|num_gpus.{0,40}ASSERT",
        ),
        signature(
            "device-ordinal",
            "invalid device ordinal",
            "CUDA_ERROR_INVALID_DEVICE",
            "cudaErrorInvalidDevice",
        ),
    ),
    explains=("cuda-visible-devices-wrong",),
)
