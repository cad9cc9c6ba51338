"""The NVIDIA Container Toolkit is too old for the Windows driver.

**Checks.** CUDA failing with error 500, "named symbol not found", during initialization.

**Why it matters.** Since 555, the Windows driver includes `libnvdxgdmal.so.1`. A toolkit before
1.14.4, and the one in Docker Desktop before 4.31, does not mount it into containers: `nvidia-smi`
works there, but CUDA does not start.

**Example.** `failed call to cuInit: CUDA_ERROR_NOT_FOUND: named symbol not found`

**Fix.** Update Docker Desktop, or the toolkit if Docker runs in the distro itself; by hand.

**Source.** NVIDIA/nvidia-container-toolkit#520; tensorflow/tensorflow#68711.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """CUDA's initialization fails with error 500."""
    if not case.sees("cuda-start-symbol-missing"):
        return None
    return Finding(
        rule="wsl-toolkit-older-than-driver",
        severity="error",
        certainty="decided" if case.is_wsl and case.is_container else "likely",
        problem="CUDA does not start in a container under WSL: the toolkit is too old.",
        because="driver 555 or newer needs libnvdxgdmal.so.1 in the container",
        evidence=case.evidence("cuda-start-symbol-missing"),
        fixes=(
            Fix(text="update Docker Desktop to 4.31 or newer"),
            Fix(
                text="or, if Docker runs in the distro itself, install toolkit 1.14.4 or newer",
                safety="ask",
                commands=(
                    "sudo apt-get update",
                    "sudo apt-get install nvidia-container-toolkit",
                    "sudo systemctl restart docker",
                ),
                where="wsl",
                changes="replaces the toolkit's packages and restarts all containers",
            ),
        ),
        confirm=("ls -l /usr/lib/wsl/lib/libnvdxgdmal.so.1", "nvidia-ctk --version"),
    )


RULE = Rule(
    check=check,
    prior=60,
    signatures=(
        signature(
            "cuda-start-symbol-missing",
            "named symbol not found",
            "CUDA_ERROR_NOT_FOUND",
            "init failure: 500",
            "cuInit err: 500",
            pattern=r"(?:cudaGetDeviceCount|NumCudaDevices|cuInit|ggml_cuda_init).{0,120}"
            r"(?:named symbol not found|CUDA_ERROR_NOT_FOUND)"
            r"|named symbol not found.{0,240}cudaGetDeviceCount"
            r"|cuda driver library init failure: 500\b|cuInit err: 500\b",
        ),
    ),
    explains=("gpu-arch-not-in-build",),
)
