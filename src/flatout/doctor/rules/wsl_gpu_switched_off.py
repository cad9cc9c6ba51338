"""The GPU is disabled for this distro in /etc/wsl.conf.

**Checks.** The section `[gpu]` with `enabled=false`. On the machine: that setting, and `gpuSupport`
in .wslconfig.

**Why it matters.** WSL then starts the distro without the GPU bridge, and no program in it finds a
GPU.

**Example.** `enabled = false`, under `[gpu]`

**Fix.** Remove the setting, then run `wsl --shutdown`; asks first.

**Source.** https://learn.microsoft.com/windows/wsl/wsl-config (GPU settings)
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix
from flatout.schema.machine import Machine
from flatout.schema.plan import Edit, Entry

_NO_SWITCH = Edit(
    file="/etc/wsl.conf", form="ini", entries=(Entry(place=("gpu", "enabled"), value=None),)
)


def check(case: Case) -> Finding | None:
    """The setting was found."""
    if not case.sees("wsl-conf-gpu-off"):
        return None
    return Finding(
        rule="wsl-gpu-switched-off",
        severity="error",
        problem="The GPU is disabled for this distro in /etc/wsl.conf.",
        evidence=case.evidence("wsl-conf-gpu-off"),
        fixes=(
            Fix(
                text=(
                    "remove `enabled=false` from the section [gpu] of /etc/wsl.conf, and "
                    "restart WSL"
                ),
                safety="ask",
                edits=(_NO_SWITCH,),
                commands=("wsl --list --running", "wsl --shutdown"),
                where="powershell",
                changes="stops every distro, container and run in WSL",
            ),
        ),
        confirm=("cat /etc/wsl.conf",),
    )


def _in_facts(machine: Machine) -> Facts:
    """Either file disables it."""
    if machine.host.wsl != 2:
        return ()
    conf = (machine.wsl.wsl_conf if machine.wsl else None) or {}
    config = (machine.windows.wslconfig if machine.windows else None) or {}
    if conf.get("gpu.enabled", "").lower() == "false":
        return fact("[gpu] enabled=false", "/etc/wsl.conf")
    if config.get("wsl2.gpusupport", "").lower() == "false":
        return fact("[wsl2] gpuSupport=false", ".wslconfig")
    return ()


RULE = Rule(
    check=check,
    prior=75,
    fact_checks=(FactCheck(sign="wsl-conf-gpu-off", read=_in_facts),),
    signatures=(
        signature(
            "wsl-conf-gpu-off",
            "[gpu]",
            pattern=r"^\s*\[gpu\]\s*\n\s*enabled\s*=\s*(?:false|0)\b",
            lines=3,
        ),
    ),
    explains=("wsl-gpu-stack-incomplete", "wsl-restart-needed", "cuda-visible-devices-wrong"),
)
