"""CUDA's compatibility libraries are in use on a card that they do not serve.

**Checks.** CUDA's error 804.

**Why it matters.** Images bring a newer libcuda in /usr/local/cuda/compat, for data center cards on
older drivers. On a GeForce it refuses to work: the host's driver is too old for the image.

**Example.** `Error 804: forward compatibility was attempted on non supported HW`

**Fix.** A newer driver on the host, or an image for an older CUDA; by hand.

**Source.** https://docs.nvidia.com/deploy/cuda-compatibility (forward compatibility)
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Finding, Fix


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


RULE = Rule(
    check=check,
    prior=80,
    signatures=(
        signature(
            "forward-compatibility",
            "forward compatibility was attempted on non supported",
            "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
            "cudaErrorCompatNotSupportedOnDevice",
            "Error 804",
        ),
    ),
    explains=("driver-too-old-for-cuda-runtime",),
)
