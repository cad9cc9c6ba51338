"""This version of Docker or Compose is too old to give GPUs to containers.

**Checks.** An unknown flag or key. On the machine: Docker older than 19.03.

**Why it matters.** `docker run --gpus` was added in Docker 19.03, device reservations in Compose
1.28, `gpus:` in Compose 2.30.

**Example.** `unknown flag: --gpus`

**Fix.** Install a current Docker from its own repository; by hand.

**Source.** https://docs.docker.com/compose/how-tos/gpu-support; https://docs.docker.com/engine/release-notes
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact, version
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix
from flatout.schema.machine import Machine


def check(case: Case) -> Finding | None:
    """A flag or key is unknown."""
    if not case.sees("gpus-flag-unknown", "compose-key-unknown"):
        return None
    return Finding(
        rule="docker-too-old-for-gpus",
        severity="error",
        certainty="decided" if case.sees("gpus-flag-unknown") else "likely",
        problem="This version of Docker or Compose is too old to request GPUs this way.",
        evidence=case.evidence("gpus-flag-unknown", "compose-key-unknown"),
        fixes=(
            Fix(
                text=(
                    "install a current Docker with its Compose plugin (`docker compose`, "
                    "not `docker-compose`)"
                ),
                where="host",
            ),
        ),
        confirm=("docker version", "docker compose version"),
    )


def _in_facts(machine: Machine) -> Facts:
    """`--gpus` was added in Docker 19.03."""
    return tuple(
        one
        for engine in machine.engines or ()
        if engine.name == "docker" and machine.gpus and version(engine.version)
        and version(engine.version) < (19, 3)
        for one in fact(f"Docker {engine.version}; --gpus needs 19.03", "docker info")
    )  # fmt: skip


RULE = Rule(
    check=check,
    prior=60,
    fact_checks=(FactCheck(sign="gpus-flag-unknown", read=_in_facts, severity="warning"),),
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
