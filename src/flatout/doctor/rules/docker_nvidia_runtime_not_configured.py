"""The toolkit is installed, but NVIDIA's runtime is not configured in the container engine.

**Checks.** Engines that lack the `nvidia` runtime, and an installed toolkit while GPUs are
refused. On the machine: the toolkit is installed, but Docker lists neither the runtime nor CDI
devices.

**Why it matters.** Docker, rootless Docker, Docker Desktop, containerd and CRI-O each have their
own configuration. A daemon reads it only at startup.

**Example.** `unknown or invalid runtime name: nvidia`

**Fix.** `nvidia-ctk runtime configure` for the engine in use, and restart it; asks first.

**Source.** https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/install-guide.html
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Certainty, Finding, Fix
from flatout.schema.machine import Machine


def check(case: Case) -> Finding | None:
    """The runtime's name is unknown, or the toolkit is installed but the engine has no GPUs."""
    is_unknown = case.sees("runtime-unknown")
    is_unused = case.sees("gpu-driver-not-selected") and case.sees("toolkit-present")
    if not is_unknown and not is_unused and not case.sees("device-plugin-blind"):
        return None
    certainty: Certainty = "decided" if is_unknown else "likely"
    if case.sees("toolkit-absent", "toolkit-program-missing"):
        certainty = "possible"
    engine = "docker"
    if case.sees("containerd-named", "device-plugin-blind"):
        engine = "containerd"
    return Finding(
        rule="docker-nvidia-runtime-not-configured",
        severity="error",
        certainty=certainty,
        problem="NVIDIA's runtime is not configured in the container engine.",
        because="it is not registered, the engine was not restarted since, or another is used",
        evidence=case.evidence(
            "runtime-unknown", "gpu-driver-not-selected", "device-plugin-blind", "toolkit-present"
        ),
        fixes=(
            Fix(
                text=(
                    "configure the engine in use (Docker Desktop and rootless Docker have "
                    "their own configuration), and restart it"
                ),
                safety="ask",
                commands=(
                    f"sudo nvidia-ctk runtime configure --runtime={engine}",
                    f"sudo systemctl restart {engine}",
                ),
                where="wsl" if case.is_wsl else "host",
                changes=(
                    "adds lines to the engine's configuration; restarting it may stop containers"
                ),
            ),
        ),
        confirm=("docker context ls", "docker info | grep -iE 'runtimes|operating system'"),
    )


def _in_facts(machine: Machine) -> Facts:
    """The toolkit is installed, but Docker does not know it."""
    if not machine.gpus:
        return ()
    return tuple(
        one
        for engine in machine.engines or ()
        if engine.name == "docker" and engine.toolkit and engine.runtimes is not None
        and "nvidia" not in engine.runtimes and not engine.cdi_devices
        for one in fact(
            f"toolkit {engine.toolkit}; runtimes: {', '.join(engine.runtimes)}", "docker info"
        )
    )  # fmt: skip


RULE = Rule(
    check=check,
    prior=60,
    fact_checks=(
        FactCheck(sign="runtime-unknown", read=_in_facts, severity="warning", certainty="likely"),
    ),
    signatures=(
        signature(
            "runtime-unknown",
            "runtime",
            "OCI runtime",
            pattern=r"unknown or invalid runtime name:? \\?[\"']?nvidia"
            r"|unknown runtime specified:? \\?[\"']?nvidia"
            r"|no runtime for \\?\"nvidia\\?\" is configured"
            r"|(?:specified default runtime|default runtime|default OCI runtime|OCI runtime)"
            r" \\?[\"']nvidia\\?[\"'] (?:does not exist|not found|is not (?:found|configured))"
            r"|runtime \\?[\"']?nvidia\\?[\"']? (?:is not installed|not found in)",
        ),
        signature(
            "containerd-named",
            "containerd",
            "k3s",
            "RuntimeClass",
            "crictl",
            pattern=r"\bcontainerd(?:\.toml|/config)|k3s|crictl|no runtime for",
        ),
        signature(
            "device-plugin-blind",
            "If this is a GPU node",
            "Incompatible platform detected",
            "could not load NVML library",
            "Detected non-NVML platform",
            "did you set the docker default runtime to",
        ),
    ),
    explains=("docker-nvidia-toolkit-missing",),
)
