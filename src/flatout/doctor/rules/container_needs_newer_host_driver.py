"""The image needs a newer driver than the host has.

**Checks.** The toolkit's requirement check, and the startup messages of NVIDIA's images.

**Why it matters.** Containers use the host's driver. An image declares the CUDA version it needs,
and the toolkit refuses to start it on an older driver.

**Example.** `nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.8`

**Fix.** Install a newer driver on the host (for WSL, in Windows), or use an image for an older
CUDA; by hand.

**Source.** https://docs.nvidia.com/datacenter/cloud-native/container-toolkit (NVIDIA_REQUIRE_*)
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """The toolkit or the image says so."""
    if not case.sees("requirement-unsatisfied", "image-wants-driver"):
        return None
    needed = case.value("requirement-unsatisfied", "cuda")
    cuda = case.machine.cuda
    is_windows = case.is_wsl or case.machine.host.os == "windows"
    because = f"the image needs CUDA {needed}" if needed else None
    if because and cuda:
        because += f"; the driver supports up to {cuda}"
    return Finding(
        rule="container-needs-newer-host-driver",
        severity="error",
        problem="The image needs a newer NVIDIA driver than the host has.",
        because=because,
        evidence=case.evidence("requirement-unsatisfied", "image-wants-driver", "nvidia-smi-head"),
        fixes=(
            Fix(
                text="install a newer driver on the host"
                + (" (in Windows)" if is_windows else "")
                + ", or use an image for an older CUDA",
                where="powershell" if is_windows else "host",
            ),
        ),
        confirm=("nvidia-smi",),
    )


RULE = Rule(
    check=check,
    prior=75,
    signatures=(
        signature(
            "requirement-unsatisfied",
            "unsatisfied condition",
            "requirement error",
            pattern=r"unsatisfied condition:? (?:cuda ?>=? ?(?P<cuda>\d+\.\d+))?|requirement error",
        ),
        signature(
            "image-wants-driver",
            "This container was built for NVIDIA Driver Release",
            "CUDA Driver UNAVAILABLE",
            "compatibility mode is UNAVAILABLE",
            pattern=r"(?:or later, but|Release \S{1,20})[\s\S]{0,160}(?:mode is UNAVAILABLE"
            r"|not compatible|was detected and compat\w+ mode is UNAV)"
            r"|mode is UNAVAILABLE|CUDA Driver UNAVAILABLE",
            lines=3,
        ),
    ),
    explains=("driver-too-old-for-cuda-runtime", "container-started-without-gpu"),
)
