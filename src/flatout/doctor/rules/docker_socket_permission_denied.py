"""This user may not talk to the Docker daemon.

**Checks.** Clients that are refused at the daemon's socket. On the machine: what `docker info` may
ask; a note, since nobody asked.

**Why it matters.** The socket belongs to root and the group `docker`; who may use it, may do what
root may.

**Example.** `permission denied while trying to connect to the Docker daemon socket`

**Fix.** Join the group `docker` and log in anew; asked first.

**Source.** https://docs.docker.com/engine/install/linux-postinstall
"""

from __future__ import annotations

from flatout.doctor.reading import Facts, Reading, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Finding, Fix
from flatout.nouns.machine import Machine


def check(case: Case) -> Finding | None:
    """The socket is closed to this user."""
    if not case.sees("docker-socket-refused"):
        return None
    return Finding(
        rule="docker-socket-permission-denied",
        severity="error",
        problem="This user may not talk to the Docker daemon.",
        evidence=case.evidence("docker-socket-refused"),
        fixes=(
            Fix(
                text="join the group docker, and log in anew (members can become root)",
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
    """The daemon runs and does not talk to this user."""
    return tuple(
        one
        for engine in machine.engines or ()
        if engine.name != "podman" and engine.is_permitted is False
        for one in fact("permission denied", "docker info")
    )


RULE = Rule(
    check=check,
    prior=70,
    readings=(Reading(sign="docker-socket-refused", read=_in_facts, severity="note"),),
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
