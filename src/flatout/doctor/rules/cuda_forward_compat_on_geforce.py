"""CUDA's compatibility libraries are used on a card that they do not support.

**Checks.** CUDA's error 804. On the machine: the loader finds a libcuda in a `compat` folder first,
and the card is a GeForce.

**Why it matters.** Images contain a newer libcuda in /usr/local/cuda/compat, for data center cards
with older drivers. It refuses to work on a GeForce, so the host's driver is too old for the image.

**Example.** `Error 804: forward compatibility was attempted on non supported HW`

**Fix.** Install a newer driver on the host, or use an image for an older CUDA; by hand.

**Source.** https://docs.nvidia.com/deploy/cuda-compatibility (forward compatibility)
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix
from flatout.schema.machine import Machine


def check(case: Case) -> Finding | None:
    """CUDA reports it. A version mismatch after a driver update gives the same error."""
    if not case.sees("forward-compatibility"):
        return None
    is_mismatch = case.sees("nvml-mismatch", "kernel-api-mismatch", "dso-mismatch")
    return Finding(
        rule="cuda-forward-compat-on-geforce",
        severity="error",
        certainty="likely" if is_mismatch else "decided",
        problem="CUDA's compatibility libraries are used on a card that they do not support.",
        because="the image's CUDA is newer than the host's driver",
        evidence=case.evidence("forward-compatibility", "nvidia-smi-head", "gpu-name"),
        fixes=(
            Fix(
                text="install a newer driver on the host, or use an image for an older CUDA",
                where="powershell" if case.is_wsl else "host",
            ),
        ),
        confirm=("nvidia-smi", "ldconfig -p | grep libcuda"),
    )


def _in_facts(machine: Machine) -> Facts:
    """The first libcuda is the compatibility package's, and the card is not a data center card."""
    first = next((one for one in machine.libraries or () if one.name == "libcuda"), None)
    names = [gpu.name or "" for gpu in machine.gpus]
    if first is None or "/compat" not in first.path or not any("GeForce" in name for name in names):
        return ()
    return (
        *fact(f"the loader finds {first.path} first", first.found_by or "ldconfig"),
        *fact(names[0], "NVML"),
    )


RULE = Rule(
    check=check,
    prior=80,
    fact_checks=(FactCheck(sign="forward-compatibility", read=_in_facts),),
    signatures=(
        signature(
            "forward-compatibility",
            "forward compatibility was attempted on non supported",
            "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
            "cudaErrorCompatNotSupportedOnDevice",
            "Error 804",
            "cuda driver library init failure: 804",
        ),
    ),
    explains=("driver-too-old-for-cuda-runtime",),
)
