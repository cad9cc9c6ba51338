"""Running containers lose the GPU when systemd reloads its units.

**Checks.** NVML's "Unknown Error" in a container, and lists of allowed devices.

**Why it matters.** systemd rewrites a container's device rules from its own configuration, which
lacks the GPU: the toolkit added it outside systemd. System updates trigger a reload, too.

**Example.** `Failed to initialize NVML: Unknown Error`, in a container that worked before

**Fix.** Recreate the container. To prevent it, name the devices, use CDI, or use the cgroup driver
`cgroupfs`; asks first.

**Source.** https://github.com/NVIDIA/nvidia-container-toolkit/issues/48
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Certainty, Finding, Fix

_LOST = ("nvml-unknown-error", "nvml-unknown-code", "torch-nvml-warning")


def check(case: Case) -> Finding | None:
    """NVML's unknown error; directly on a host it has another cause."""
    is_explicit = case.sees("daemon-reloaded", "devices-without-gpu")
    is_lost = case.sees("nvml-unknown-error", "nvml-unknown-code")
    is_warned = case.sees("torch-nvml-warning") and (case.is_container or is_explicit)
    if not is_lost and not is_warned:
        return None
    certainty: Certainty = "decided" if is_explicit else "likely"
    if not is_explicit and not case.is_container and case.is_wsl:
        certainty = "possible"
    return Finding(
        rule="container-gpu-lost-after-daemon-reload",
        severity="error",
        certainty=certainty,
        problem="The container has lost its GPU, typically because systemd reloaded its units.",
        because="systemd rewrites the device rules without the GPU that the toolkit added",
        evidence=case.evidence(*_LOST, "daemon-reloaded", "devices-without-gpu"),
        fixes=(
            Fix(
                text="recreate the container with CDI, so that the engine knows its devices",
                safety="ask",
                commands=(
                    "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
                    "docker run --device nvidia.com/gpu=all IMAGE",
                ),
                where="host",
                changes="writes /etc/cdi/nvidia.yaml; replaces the container",
            ),
        ),
        confirm=("docker info | grep -i cgroup", "journalctl | grep -i reloading"),
    )


RULE = Rule(
    check=check,
    prior=60,
    signatures=(
        signature("nvml-unknown-code", "NVML_ERROR_UNKNOWN", "NVMLError_Unknown"),
        signature("torch-nvml-warning", "Can't initialize NVML"),
        signature(
            "daemon-reloaded",
            "daemon-reload",
            "daemon-reexec",
            "systemd",
            pattern=r"systemctl\s(?:--system )?daemon-re(?:load|exec)|systemd\[1\]: Reloading\.?$"
            r"|systemd\[1\]: Reexecuting",
        ),
        signature("devices-without-gpu", "c 195:* m", pattern=r"^c 195:\* m\s*$"),
    ),
    explains=("cuda-broken-after-suspend", "cuda-visible-devices-wrong", "wsl-restart-needed"),
)
