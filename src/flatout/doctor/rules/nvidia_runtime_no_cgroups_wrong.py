"""The `no-cgroups` setting is wrong for how containers run here.

**Checks.** The setting, NVML blocked in a container, and device rules that the toolkit has no
permission to write. On the machine: `no-cgroups = true` although Docker runs as root, which drops
the device rules.

**Why it matters.** The toolkit grants a container access to the GPU's device files through cgroups.
As root it must (`no-cgroups = false`); without root, as in rootless Docker, Podman or LXC, it
cannot (`true`).

**Example.** `bpf_prog_query(BPF_CGROUP_DEVICE) failed: operation not permitted`

**Fix.** Set it in /etc/nvidia-container-runtime/config.toml and restart the engine; asks first.

**Source.** https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/install-guide.html
(rootless mode); https://github.com/microsoft/WSL/issues/9962
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Certainty, Finding, Fix
from flatout.schema.machine import Machine

_BLIND = ("nvml-unknown-error", "nvml-blocked", "cuda-no-device", "cuda-unknown-error")


def check(case: Case) -> Finding | None:
    """Device rules are refused, or were omitted and the container is blocked."""
    is_refused = case.sees("device-rules-refused")
    is_off = case.sees("no-cgroups-set") or (case.sees("no-cgroups-true") and case.sees(*_BLIND))
    is_blocked = case.sees("nvml-blocked") and case.is_container
    if not is_refused and not is_off and not is_blocked:
        return None
    certainty: Certainty = "decided" if is_refused or is_off else "likely"
    value = "true" if is_refused else "false"
    return Finding(
        rule="nvidia-runtime-no-cgroups-wrong",
        severity="error",
        certainty=certainty,
        problem="The toolkit has no permission to write the container's device rules."
        if is_refused
        else "The container has no access to the GPU's device files.",
        because=f"`no-cgroups` should be {value} here",
        evidence=case.evidence(
            "device-rules-refused", "no-cgroups-true", "no-cgroups-set", *_BLIND
        ),
        fixes=(
            Fix(
                text="change it, and restart the engine",
                safety="ask",
                commands=(
                    f"sudo nvidia-ctk config --set nvidia-container-cli.no-cgroups={value} "
                    "--in-place",
                    "sudo systemctl restart docker",
                ),
                where="wsl" if case.is_wsl else "host",
                changes="/etc/nvidia-container-runtime/config.toml; restarts Docker",
            ),
        ),
        confirm=("grep no-cgroups /etc/nvidia-container-runtime/config.toml", "docker info"),
    )


def _in_facts(machine: Machine) -> Facts:
    """The setting is for rootless engines, but this one runs as root."""
    return tuple(
        one
        for engine in machine.engines or ()
        if engine.name == "docker" and engine.no_cgroups and engine.is_rootless is False
        for one in (
            *fact("no-cgroups = true", "/etc/nvidia-container-runtime/config.toml"),
            *fact("Docker is not rootless", "docker info"),
        )
    )


RULE = Rule(
    check=check,
    prior=65,
    fact_checks=(
        FactCheck(sign="no-cgroups-set", read=_in_facts, severity="warning", certainty="likely"),
    ),
    signatures=(
        signature(
            "device-rules-refused",
            "devices.allow",
            "BPF_CGROUP_DEVICE",
            "failed to add device rules",
            "device filters attached",
            pattern=r"devices\.allow.{0,20}(?:permission denied|not permitted)"
            r"|BPF_CGROUP_DEVICE.{0,40}not permitted|failed to add device rules"
            r"|unable to find any existing device filters",
        ),
        signature(
            "no-cgroups-true",
            "no-cgroups",
            pattern=r"^[^#\n]{0,80}no-cgroups\s?=\s?\"?true",
        ),
    ),
    explains=("container-gpu-lost-after-daemon-reload", "wsl-gpu-stack-incomplete"),
)
