"""The CDI specification is missing or was generated for another driver.

**Checks.** Devices that the engine cannot resolve, and mounts of driver files that no longer exist.
On the machine: the driver version in the specification against the driver's own.

**Why it matters.** The specification lists the driver's files by name and version. A driver update
(under WSL, of the Windows driver) renames them.

**Example.** `unresolvable CDI devices nvidia.com/gpu=all`

**Fix.** Regenerate it; asks first.

**Source.** https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/cdi-support.html;
https://github.com/microsoft/WSL/issues/11589
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix
from flatout.schema.machine import Machine


def check(case: Case) -> Finding | None:
    """The engine cannot find the devices, or files named in the specification."""
    if not case.sees("cdi-unresolved", "driver-file-gone", "cdi-without-dxcore"):
        return None
    return Finding(
        rule="cdi-spec-stale",
        severity="error",
        problem="The CDI specification is missing or was generated for another driver.",
        because="it lists the driver's files by version",
        evidence=case.evidence("cdi-unresolved", "driver-file-gone", "cdi-without-dxcore"),
        fixes=(
            Fix(
                text="regenerate the specification",
                safety="ask",
                commands=("sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",),
                where="wsl" if case.is_wsl else "host",
                changes="/etc/cdi/nvidia.yaml",
            ),
        ),
        confirm=("nvidia-ctk cdi list", "ls -l /etc/cdi /var/run/cdi"),
    )


def _in_facts(machine: Machine) -> Facts:
    """The specification names the files of another driver."""
    if machine.host.wsl or machine.driver is None:
        return ()
    return tuple(
        one
        for engine in machine.engines or ()
        if engine.cdi_driver and engine.cdi_driver != machine.driver
        for one in (
            *fact(f"CDI specification for driver {engine.cdi_driver}", "/etc/cdi, /var/run/cdi"),
            *fact(f"driver {machine.driver}", "NVML"),
        )
    )[:2]


RULE = Rule(
    check=check,
    prior=70,
    fact_checks=(FactCheck(sign="driver-file-gone", read=_in_facts, severity="warning"),),
    signatures=(
        signature(
            "cdi-unresolved",
            "CDI",
            "nvidia.com/gpu",
            pattern=r"unresolvable CDI devices?|CDI device injection failed|failed to inject CDI"
            r"|stat nvidia\.com/gpu=\S{1,60}: no such file",
        ),
        signature(
            "driver-file-gone",
            "error mounting",
            "failed to fulfil mount request",
            "stat'ing file",
            "mount error",
            "failed to stat CDI host device",
            pattern=r"failed to stat CDI host device"
            r"|(?:error mounting|fulfil mount request|stat'ing file|stat CDI).{0,40}"
            r"/(?:usr/lib/wsl/|dev/nvidia|\S{0,80}(?:lib(?:nvidia|cuda|nvoptix|nvcuvid)|nvidia))"
            r"[^\n]{0,500}no such file",
        ),
        signature("cdi-without-dxcore", "NVML: N/A", pattern=r"Failed to initialize NVML: N/A"),
    ),
    explains=("wsl-gpu-stack-incomplete", "container-started-without-gpu"),
)
