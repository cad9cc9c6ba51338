"""The container was started without the GPU.

**Checks.** Messages of NVIDIA's images, torch, TensorFlow and others in a container without a
driver, and the command that started it. On the machine: a container that sees the kernel's driver
but no GPU.

**Why it matters.** A GPU image alone gives no GPU access: the driver's files and devices are added
to a container only on request. `docker build` has no GPU at all.

**Example.** `WARNING: The NVIDIA Driver was not detected. GPU functionality will not be available.`

**Fix.** `docker run --gpus all`; in Compose, a device reservation; in Kubernetes, a limit for
`nvidia.com/gpu`; with Apptainer, `--nv`; by hand.

**Source.** https://docs.docker.com/engine/containers/gpu; https://docs.docker.com/compose/how-tos/gpu-support
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Certainty, Finding, Fix
from flatout.schema.machine import Machine

_BARE = (
    "no-driver-found", "tf-no-kernel-driver", "tf-no-device-file", "smi-not-found",
    "libcuda-not-opened", "nvml-library-missing", "cuda-no-device", "gpus-undiscovered",
    "cuda-driver-insufficient",
)  # fmt: skip
# Errors of nvidia-container-cli: a GPU was requested, and the host could not provide it.
_HOST = ("container-cli-failed", "device-plugin-blind", "gpu-driver-not-selected")


def check(case: Case) -> Finding | None:
    """No part of a driver is found inside the container."""
    is_explicit = case.sees("image-without-driver")
    is_bare = case.sees(*_BARE) and not case.sees(*_HOST)
    is_run_bare = case.sees("run-without-gpu") and not case.sees("gpu-asked-for")
    if not is_explicit and not is_bare:
        return None
    certainty: Certainty
    if is_explicit or is_run_bare or case.is_container and case.sees("nvidia-smi-head"):
        certainty = "decided"
    elif case.is_container and not case.sees("gpu-asked-for"):
        certainty = "likely"
    elif case.is_container or case.sees("tf-no-device-file"):
        certainty = "possible"
    else:
        return None
    return Finding(
        rule="container-started-without-gpu",
        severity="error",
        certainty=certainty,
        problem="The container was started without the GPU.",
        because="a GPU image alone gives no GPU access; the container must request it",
        evidence=case.evidence("image-without-driver", "run-without-gpu", *_BARE),
        fixes=(
            Fix(
                text=(
                    "start it with GPU access (Compose: a device reservation; Kubernetes: a"
                    " limit for nvidia.com/gpu; Apptainer: --nv)"
                ),
                commands=("docker run --rm --gpus all ubuntu nvidia-smi",),
                where="host",
            ),
        ),
        confirm=("ls -l /dev/nvidia* /dev/dxg", "docker run --rm --gpus all ubuntu nvidia-smi"),
    )


def _in_facts(machine: Machine) -> Facts:
    """The kernel has the driver, but the container sees no GPU."""
    module = machine.module
    if machine.host.container is None or machine.gpus or module is None or not module.loaded:
        return ()
    return (
        *fact(f"the kernel has the NVIDIA driver {module.loaded}", "/proc/driver/nvidia/version"),
        *fact("no GPU in this container", "NVML"),
    )


RULE = Rule(
    check=check,
    prior=65,
    fact_checks=(
        FactCheck(sign="image-without-driver", read=_in_facts, severity="warning"),
    ),
    signatures=(
        signature(
            "image-without-driver",
            "GPU functionality will not be available",
            "to start this container with GPU support",
        ),
        signature(
            "tf-no-device-file",
            "no NVIDIA GPU device is present",
            "/dev/nvidia",
            pattern=r"no NVIDIA GPU device is present|/dev/nvidia(?:0|ctl) does not exist"
            r"|(?:cannot access|stat) '?/dev/nvidia\S{1,4}: No such",
        ),
        signature(
            "run-without-gpu",
            "docker",
            "podman",
            "nerdctl",
            "apptainer",
            "singularity",
            pattern=r"\b(?:docker|podman|nerdctl)(?:\.exe)? (?:container )?run (?!.{0,600}(?:--gpus"
            r"|--runtime|nvidia\.com/gpu|NVIDIA_VISIBLE|/dev/nvidia))"
            r"|\b(?:apptainer|singularity) (?:exec|run|shell) (?!.{0,200}--nv)"
            r"|\(?during docker build|^(?:#\d+ )?(?:RUN|Step \d+/\d+ : RUN)\b",
        ),
        signature(
            "gpu-asked-for",
            "--gpus",
            "--runtime",
            "nvidia.com/gpu",
            "--nv",
            "capabilities",
            pattern=r"--gpus[ =]|--runtime[ =]nvidia|nvidia\.com/gpu[=:]|--nv\b"
            r"|capabilities: ?\[\"?'?gpu",
        ),
        signature(
            "gpus-undiscovered",
            "no compatible GPUs were discovered",
            "Failed to infer device type",
            "Could not find any nv files on this host",
            "Could not find cuda drivers on your machine",
            "libcuda reported version is: Invalid argument",
        ),
    ),
    explains=("host-nvidia-driver-missing", "cuda-visible-devices-wrong",
              "driver-too-old-for-cuda-runtime"),
)  # fmt: skip
