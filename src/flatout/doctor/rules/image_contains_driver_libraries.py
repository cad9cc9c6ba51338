"""The image contains its own driver libraries.

**Checks.** Mounts that fail because the file exists, and, only in a container, libraries in another
version than the host's driver. On the machine: a container with driver packages installed.

**Why it matters.** The toolkit mounts the host's driver into the container. An image built with a
driver package, or committed from a running container, already has other files there.

**Example.** `libnvidia-ml.so.1: file exists: unknown`

**Fix.** Build the image without driver packages, or delete the files in its Dockerfile; by hand.

**Source.** https://github.com/NVIDIA/nvidia-container-toolkit/issues/371
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Certainty, Finding, Fix
from flatout.schema.machine import Machine

_MISMATCH = ("nvml-mismatch", "cuda-driver-combination", "dso-mismatch")


def check(case: Case) -> Finding | None:
    """A mount target already exists; or only the container's libraries do not match the module."""
    exists = case.sees("driver-file-exists")
    # nvidia-container-cli runs on the host, so its mismatch is the host's.
    is_inside = (
        case.sees(*_MISMATCH) and case.is_container and not case.sees("container-cli-failed")
    )
    is_host_fine = case.sees("nvidia-smi-head")
    is_built_in = case.sees("dockerfile-driver")
    if not exists and not (is_inside and (is_host_fine or is_built_in)):
        return None
    certainty: Certainty = "decided"
    return Finding(
        rule="image-contains-driver-libraries",
        severity="error",
        certainty=certainty,
        problem=(
            "The image contains its own driver libraries at the paths where the host's are mounted."
        ),
        evidence=case.evidence("driver-file-exists", "dockerfile-driver", *_MISMATCH),
        fixes=(
            Fix(
                text="build the image without driver packages (nvidia-driver, nvidia-utils, "
                "libnvidia-compute, cuda), or delete the files in its Dockerfile",
                commands=(
                    "RUN rm -f /usr/lib/x86_64-linux-gnu/libcuda.so* "
                    "/usr/lib/x86_64-linux-gnu/libnvidia-*.so*",
                ),
                where="container",
            ),
        ),
        confirm=(
            "docker run --rm --entrypoint sh IMAGE -c "
            "'ls -l /usr/lib/x86_64-linux-gnu | grep -E \"libcuda|libnvidia\"'",
        ),
    )


def _in_facts(machine: Machine) -> Facts:
    """The driver's packages are installed inside a container."""
    packages = machine.module.packages if machine.module else None
    if machine.host.container is None or not packages:
        return ()
    return fact(f"in the image: {', '.join(packages[:3])}", "dpkg")


RULE = Rule(
    check=check,
    prior=80,
    fact_checks=(FactCheck(sign="driver-file-exists", read=_in_facts, severity="warning"),),
    signatures=(
        signature(
            "driver-file-exists",
            "file exists",
            pattern=r"(?:nvidia-container-cli|nvidia-c(?:tk|di)|mount error|create symlink).{0,400}"
            r"(?:lib(?:nvidia|cuda|nvcuvid|dxcore|nvoptix|nvml)[\w-]{0,40}\.so[\d.]{0,20}"
            r"|nvidia-[\w-]{1,30}|nvcubins\.bin).{0,20}: file exists",
        ),
        signature(
            "dockerfile-driver",
            "RUN",
            pattern=r"^(?:#\d+ .{0,20})?RUN .{0,300}\b(?:nvidia-(?:driver|utils)-\d"
            r"|libnvidia-compute|cuda-drivers)",
        ),
    ),
    explains=("driver-library-version-mismatch",),
)
