"""This user has no permission to open the GPU's device files.

**Checks.** NVML's "Insufficient Permissions", and device files in /dev that cannot be opened.

**Why it matters.** CUDA works for root but finds no device for other users if the files belong to a
group (`video`, `render`) or the driver is configured to restrict them.

**Example.** `Failed to initialize NVML: Insufficient Permissions`

**Fix.** Join the group that owns the files, and log in again; asks first.

**Source.** NVIDIA driver README (NVreg_DeviceFileMode); docs.nvidia.com/deploy/nvml-api
(NVML_ERROR_NO_PERMISSION).
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Certainty, Finding, Fix


def check(case: Case) -> Finding | None:
    """A file cannot be opened; in a container another rule is more specific."""
    if not case.sees("nvml-no-permission", "device-file-refused"):
        return None
    certainty: Certainty = "likely" if case.is_container else "decided"
    return Finding(
        rule="gpu-device-permission-denied",
        severity="error",
        certainty=certainty,
        problem="This user has no permission to open the GPU's device files.",
        evidence=case.evidence("nvml-no-permission", "device-file-refused", "device-file-listed"),
        fixes=(
            Fix(
                text="join the groups that own the files, and log in again",
                safety="ask",
                commands=("sudo usermod -aG video,render $USER",),
                where="host",
                changes="the user's groups",
                undo="sudo gpasswd -d $USER video; sudo gpasswd -d $USER render",
            ),
        ),
        confirm=("ls -l /dev/nvidia* /dev/dri", "id"),
    )


RULE = Rule(
    check=check,
    prior=50,
    signatures=(
        signature(
            "nvml-no-permission",
            "Insufficient Permissions",
            "NVML_ERROR_NO_PERMISSION",
            "NVMLError_NoPermission",
            pattern=r"NVML.{0,30}Insufficient Permissions|NVML_?Error_No_?Permission",
        ),
        signature(
            "device-file-refused",
            "Permission denied",
            "Operation not permitted",
            pattern=r"/dev/(?:nvidia\S{0,20}|dxg)\W.{0,20}(?:Permission denied|not permitted)"
            r"|(?:Permission denied|not permitted).{0,30}/dev/(?:nvidia|dxg)",
        ),
        signature(
            "device-file-listed",
            "/dev/nvidia",
            pattern=r"^c(?:rw-){2}-{3}\S?\s.{0,60}/dev/nvidia",
        ),
    ),
    explains=("cuda-visible-devices-wrong",),
)
