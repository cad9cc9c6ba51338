"""CUDA's compatibility libraries are in use on a card that they do not serve.

**Checks.** CUDA's error 804. On the machine: a libcuda of a folder `compat` that the loader takes
first, and a GeForce card.

**Why it matters.** Images bring a newer libcuda in /usr/local/cuda/compat, for data center cards on
older drivers. On a GeForce it refuses to work: the host's driver is too old for the image.

**Example.** `Error 804: forward compatibility was attempted on non supported HW`

**Fix.** A newer driver on the host, or an image for an older CUDA; by hand.

**Source.** https://docs.nvidia.com/deploy/cuda-compatibility (forward compatibility)
"""

from __future__ import annotations

from flatout.doctor.reading import Facts, Reading, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Finding, Fix
from flatout.nouns.machine import Machine


def check(case: Case) -> Finding | None:
    """CUDA says so. After a driver's update a mismatch says the same."""
    if not case.sees("forward-compatibility"):
        return None
    is_mismatch = case.sees("nvml-mismatch", "kernel-api-mismatch", "dso-mismatch")
    return Finding(
        rule="cuda-forward-compat-on-geforce",
        severity="error",
        certainty="likely" if is_mismatch else "decided",
        problem="CUDA's compatibility libraries are in use on a card that they do not serve.",
        because="the image's CUDA is newer than the host's driver",
        evidence=case.evidence("forward-compatibility", "nvidia-smi-head", "gpu-name"),
        fixes=(
            Fix(
                text="install a newer driver on the host, or take an image made for an older CUDA",
                where="powershell" if case.is_wsl else "host",
            ),
        ),
        confirm=("nvidia-smi", "ldconfig -p | grep libcuda"),
    )


def _in_facts(machine: Machine) -> Facts:
    """The first libcuda is the compatibility package's, and the card is none of a data centre."""
    first = next((one for one in machine.libraries or () if one.name == "libcuda"), None)
    names = [gpu.name or "" for gpu in machine.gpus]
    if first is None or "/compat" not in first.path or not any("GeForce" in name for name in names):
        return ()
    return (
        *fact(f"the loader takes {first.path}", first.found_by or "ldconfig"),
        *fact(names[0], "NVML"),
    )


RULE = Rule(
    check=check,
    prior=80,
    readings=(Reading(sign="forward-compatibility", read=_in_facts),),
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
