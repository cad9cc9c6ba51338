"""The NVIDIA Container Toolkit is not installed.

**Checks.** A container engine without a GPU driver, or without the toolkit's programs. On the
machine: a GPU, a running Docker and no `nvidia-ctk`; only a note, since containers may not be
needed.

**Why it matters.** Docker and Podman can use GPUs only through the toolkit. Neither the NVIDIA
driver nor images include it.

**Example.** `could not select device driver "" with capabilities: [[gpu]]`

**Fix.** Install nvidia-container-toolkit from NVIDIA's repository and let it configure the engine;
asks first.

**Source.** https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/install-guide.html
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Certainty, Finding, Fix
from flatout.schema.machine import Machine

_SIGNS = ("gpu-driver-not-selected", "toolkit-program-missing", "toolkit-absent")


def check(case: Case) -> Finding | None:
    """The engine finds no GPUs; if the toolkit is present, another cause is more likely."""
    if not case.sees(*_SIGNS):
        return None
    certainty: Certainty = "likely"
    if case.sees("toolkit-program-missing", "toolkit-absent"):
        certainty = "decided"
    elif case.sees("toolkit-present"):
        certainty = "possible"
    return Finding(
        rule="docker-nvidia-toolkit-missing",
        severity="error",
        certainty=certainty,
        problem="The NVIDIA Container Toolkit is not installed.",
        because="the engine can use GPUs only through it",
        evidence=case.evidence(*_SIGNS),
        fixes=(
            Fix(
                text=(
                    "install the toolkit (apt needs NVIDIA's repository), and let it "
                    "configure Docker"
                ),
                safety="ask",
                commands=(
                    "sudo apt-get install nvidia-container-toolkit",
                    "sudo nvidia-ctk runtime configure --runtime=docker",
                    "sudo systemctl restart docker",
                ),
                where="wsl" if case.is_wsl else "host",
                changes="adds a package and lines in /etc/docker/daemon.json; restarts Docker",
                undo="sudo apt-get remove nvidia-container-toolkit",
            ),
        ),
        confirm=("nvidia-ctk --version", "docker info | grep -iE 'runtimes|operating system'"),
    )


def _in_facts(machine: Machine) -> Facts:
    """A GPU and Docker on Linux, without the toolkit."""
    if not machine.gpus or machine.host.container:
        return ()
    return tuple(
        one
        for engine in machine.engines or ()
        if engine.name == "docker" and engine.is_running and engine.is_permitted
        and engine.toolkit is None and "nvidia" not in (engine.runtimes or ())
        and not engine.cdi_devices
        for one in fact(f"Docker {engine.version} is running, nvidia-ctk is not installed", "PATH")
    )  # fmt: skip


RULE = Rule(
    check=check,
    prior=60,
    fact_checks=(FactCheck(sign="toolkit-absent", read=_in_facts, severity="note"),),
    signatures=(
        signature(
            "gpu-driver-not-selected",
            "could not select device driver",
            pattern=r"could not select device driver \\?\"(?:nvidia)?\\?\" with capabilities",
        ),
        signature(
            "toolkit-program-missing",
            "nvidia-container",
            "nvidia-docker",
            "nvidia-ctk",
            pattern=r"nvidia-container-(?:runtime-hook|runtime|toolkit|cli)\W{0,3}:"
            r" (?:executable file not found|no such file|not found|command not found)"
            r"|(?:nvidia-docker|nvidia-ctk|nvidia-container-cli):? (?:command )?not found"
            r"|(?:fork/exec|stat) /\S{0,40}nvidia-container-\w+\S{0,20}: no such file",
        ),
        signature(
            "toolkit-absent",
            "nvidia-container",
            "nvidia-docker",
            pattern=r"(?:no packages found matching|package|Unable to locate package) "
            r"nvidia-(?:container|docker)\S{0,20}(?: is not installed)?$",
        ),
        signature(
            "toolkit-present",
            "nvidia-container",
            "nvidia-docker",
            "nvidia-ctk",
            "NVIDIA Container",
            pattern=r"^ii\s+nvidia-(?:container-(?:toolkit|runtime)|docker2)\b"
            r"|^nvidia-(?:container-toolkit|container-runtime|docker2)-\d"
            r"|nvidia-container-toolkit is already|Setting up nvidia-(?:container-toolkit|docker2)"
            r"|NVIDIA Container (?:Toolkit CLI|Runtime(?: Hook)?) version|nvidia-ctk runtime conf"
            r"|\"?path\"?: \"?\S{0,40}nvidia-container-runtime",
        ),
    ),
)
