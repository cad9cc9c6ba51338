"""The machine's NVSwitch needs the fabric manager, which is not running.

**Checks.** CUDA error 802, the service's state, and the fabric's state in `nvidia-smi -q`. On the
machine: systemd's state of the service, if there is an NVSwitch.

**Why it matters.** On machines with NVSwitch (HGX, DGX) CUDA starts only after the fabric manager,
of exactly the driver's version, has set up the links.

**Example.** `Error 802: system not yet initialized`

**Fix.** Install and start the service in the driver's version; asks first.

**Source.** docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/;
docs.nvidia.com/cuda/cuda-runtime-api (cudaErrorSystemNotReady).
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix
from flatout.schema.machine import Machine


def check(case: Case) -> Finding | None:
    """CUDA waits for the fabric, or the service is reported as not running."""
    is_down = case.sees("fabric-manager-down")
    if not case.sees("cuda-not-ready") and not is_down:
        return None
    version = case.machine.driver
    package = f"nvidia-fabricmanager-{version.split('.')[0]}" if version else "nvidia-fabricmanager"
    return Finding(
        rule="fabric-manager-not-running",
        severity="error",
        certainty="decided" if case.sees("cuda-not-ready") else "likely",
        problem="CUDA waits for the fabric manager, which is not running.",
        because="GPUs behind an NVSwitch start only after it has set up the links",
        evidence=case.evidence("cuda-not-ready", "fabric-manager-down"),
        fixes=(
            Fix(
                text="install and start the fabric manager in exactly the driver's version",
                safety="ask",
                commands=(
                    f"sudo apt-get install {package}",
                    "sudo systemctl enable --now nvidia-fabricmanager",
                ),
                where="host",
                changes="adds a service",
                undo="sudo systemctl disable --now nvidia-fabricmanager",
            ),
        ),
        confirm=("systemctl status nvidia-fabricmanager", "nvidia-smi -q | grep -A3 Fabric"),
    )


def _in_facts(machine: Machine) -> Facts:
    """There is an NVSwitch, and the service is not running."""
    state = machine.module.fabric_manager if machine.module else None
    if state is None or state in ("active", "activating"):
        return ()
    return fact(f"nvidia-fabricmanager: {state}", "systemctl")


RULE = Rule(
    check=check,
    fact_checks=(
        FactCheck(sign="fabric-manager-down", read=_in_facts),
    ),
    signatures=(
        signature(
            "cuda-not-ready",
            "system not yet initialized",
            "CUDA_ERROR_SYSTEM_NOT_READY",
            "cudaErrorSystemNotReady",
            "cuda driver library init failure: 802",
        ),
        signature(
            "fabric-manager-down",
            "fabricmanager", "fabric manager", "FabricManager",
            pattern=r"fabric-?\s?manager.{0,80}(?:could not be found|inactive|failed|not running"
            r"|not (?:been )?(?:started|installed)|don't match|mismatch|Unable|error)",
        ),
    ),
)  # fmt: skip
