"""This Docker, or Compose, is too old to give GPUs to containers.

**Checks.** A flag or key that it does not know. On the machine: a Docker before 19.03.

**Why it matters.** `docker run --gpus` came with Docker 19.03, device reservations with Compose
1.28, `gpus:` with Compose 2.30.

**Example.** `unknown flag: --gpus`

**Fix.** Install a present Docker from its own repository; by hand.

**Source.** https://docs.docker.com/compose/how-tos/gpu-support; https://docs.docker.com/engine/release-notes
"""

from __future__ import annotations

from flatout.doctor.reading import Facts, Reading, fact, version
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Finding, Fix
from flatout.nouns.machine import Machine


def check(case: Case) -> Finding | None:
    """A flag or key is unknown."""
    if not case.sees("gpus-flag-unknown", "compose-key-unknown"):
        return None
    return Finding(
        rule="docker-too-old-for-gpus",
        severity="error",
        certainty="decided" if case.sees("gpus-flag-unknown") else "likely",
        problem="This Docker or Compose does not know how to ask for GPUs in this form.",
        evidence=case.evidence("gpus-flag-unknown", "compose-key-unknown"),
        fixes=(
            Fix(
                text="install a present Docker with its Compose plugin (`docker compose`, not "
                "`docker-compose`)",
                where="host",
            ),
        ),
        confirm=("docker version", "docker compose version"),
    )


def _in_facts(machine: Machine) -> Facts:
    """`--gpus` came with Docker 19.03."""
    return tuple(
        one
        for engine in machine.engines or ()
        if engine.name == "docker" and machine.gpus and version(engine.version)
        and version(engine.version) < (19, 3)
        for one in fact(f"Docker {engine.version}; --gpus came with 19.03", "docker info")
    )  # fmt: skip


RULE = Rule(
    check=check,
    prior=60,
    readings=(Reading(sign="gpus-flag-unknown", read=_in_facts, severity="warning"),),
    signatures=(
        signature("gpus-flag-unknown", "unknown flag: --gpus"),
        signature(
            "compose-key-unknown",
            "Additional property",
            "Additional properties",
            "Unsupported config option",
            pattern=r"Additional propert(?:y|ies) (?:are )?.{0,20}(?:gpus|runtime|devices)\b.{0,20}"
            r"(?:not allowed|unexpected)|Unsupported config option for services\S{0,60}:"
            r" '(?:runtime|gpus|device_requests)'|additional properties '(?:gpus|runtime|devices)'",
        ),
    ),
)
