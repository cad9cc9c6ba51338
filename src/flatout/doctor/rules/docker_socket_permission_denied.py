"""This user has no permission to use the Docker daemon.

**Checks.** Clients denied access to the daemon's socket. On the machine: whether `docker info` is
permitted; only a note, since Docker may not be needed.

**Why it matters.** The socket belongs to root and the group `docker`. Access to it is equivalent to
root access.

**Example.** `permission denied while trying to connect to the Docker daemon socket`

**Fix.** Join the group `docker` and log in again; asks first.

**Source.** https://docs.docker.com/engine/install/linux-postinstall
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix
from flatout.schema.machine import Machine


def check(case: Case) -> Finding | None:
    """The socket is closed to this user."""
    if not case.sees("docker-socket-refused"):
        return None
    return Finding(
        rule="docker-socket-permission-denied",
        severity="error",
        problem="This user has no permission to use the Docker daemon.",
        evidence=case.evidence("docker-socket-refused"),
        fixes=(
            Fix(
                text="join the group docker, and log in again (members can become root)",
                safety="ask",
                commands=("sudo usermod -aG docker $USER", "newgrp docker"),
                where="wsl" if case.is_wsl else "host",
                changes="the user's groups",
                undo="sudo gpasswd -d $USER docker",
            ),
        ),
        confirm=("id", "ls -l /var/run/docker.sock"),
    )


def _in_facts(machine: Machine) -> Facts:
    """The daemon runs but denies access to this user."""
    return tuple(
        one
        for engine in machine.engines or ()
        if engine.name != "podman" and engine.is_permitted is False
        for one in fact("permission denied", "docker info")
    )


RULE = Rule(
    check=check,
    prior=70,
    fact_checks=(FactCheck(sign="docker-socket-refused", read=_in_facts, severity="note"),),
    signatures=(
        signature(
            "docker-socket-refused",
            "permission denied while trying to connect to the docker",
            "docker.sock",
            "docker_engine",
            "Error while fetching server API version",
            pattern=r"permission denied while trying to connect to the docker"
            r"|docker\.sock.{0,40}permission denied|docker_engine: Access is denied"
            r"|server API version.{0,120}Permission ?(?:denied|Error)",
        ),
    ),
    explains=("docker-daemon-not-running",),
)
