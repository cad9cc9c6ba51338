"""The GPU is switched off for this distro in /etc/wsl.conf.

**Checks.** The section `[gpu]` with `enabled=false`. On the machine: that setting, and `gpuSupport`
in .wslconfig.

**Why it matters.** WSL then starts the distro without the bridge to the GPU; nothing in it finds
one.

**Example.** `enabled = false`, below `[gpu]`

**Fix.** Take the setting out, then `wsl --shutdown`; asked first.

**Source.** https://learn.microsoft.com/windows/wsl/wsl-config (GPU settings)
"""

from __future__ import annotations

from flatout.doctor.reading import Facts, Reading, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Finding, Fix
from flatout.nouns.machine import Machine
from flatout.nouns.plan import Edit, Entry

_NO_SWITCH = Edit(
    file="/etc/wsl.conf", form="ini", entries=(Entry(place=("gpu", "enabled"), value=None),)
)


def check(case: Case) -> Finding | None:
    """The setting is seen."""
    if not case.sees("wsl-conf-gpu-off"):
        return None
    return Finding(
        rule="wsl-gpu-switched-off",
        severity="error",
        problem="The GPU is switched off for this distro in /etc/wsl.conf.",
        evidence=case.evidence("wsl-conf-gpu-off"),
        fixes=(
            Fix(
                text="take `enabled=false` out of the section [gpu] of /etc/wsl.conf, and restart "
                "WSL",
                safety="ask",
                edits=(_NO_SWITCH,),
                commands=("wsl --list --running", "wsl --shutdown"),
                where="powershell",
                changes="ends every distro, container and run in WSL",
            ),
        ),
        confirm=("cat /etc/wsl.conf",),
    )


def _in_facts(machine: Machine) -> Facts:
    """Either file switches it off."""
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
    readings=(Reading(sign="wsl-conf-gpu-off", read=_in_facts),),
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
