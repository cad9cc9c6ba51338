"""The container engine is not running.

**Checks.** Docker, Podman and containerd clients that cannot connect. On the machine: `docker info`
reaches no daemon; only a note, since Docker may not be needed.

**Why it matters.** The command is only a client; a daemon, or Docker Desktop, does the work.

**Example.** `Cannot connect to the Docker daemon at unix:///var/run/docker.sock.`

**Fix.** Start the engine, or Docker Desktop; asks first.

**Source.** https://docs.docker.com/engine/daemon/troubleshoot
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix
from flatout.schema.machine import Machine


def check(case: Case) -> Finding | None:
    """A client cannot reach the daemon, or the service does not start."""
    if not case.sees("docker-daemon-unreached", "docker-service-failed"):
        return None
    is_desktop = case.machine.host.os == "windows" or case.sees("docker-desktop-named")
    start = ("sudo service docker start",) if case.is_wsl else ("sudo systemctl start docker",)
    return Finding(
        rule="docker-daemon-not-running",
        severity="error",
        problem="The container engine is not running.",
        evidence=case.evidence("docker-daemon-unreached", "docker-service-failed"),
        fixes=(
            Fix(text="start Docker Desktop, and wait until it reports that it is running")
            if is_desktop
            else Fix(
                text="start the engine",
                safety="ask",
                commands=start,
                where="wsl" if case.is_wsl else "host",
                changes="starts a service",
                undo="sudo systemctl stop docker",
            ),
        ),
        confirm=("docker context ls", "systemctl status docker", "journalctl -u docker -n 50"),
    )


def _in_facts(machine: Machine) -> Facts:
    """Docker is installed, but its daemon does not answer."""
    return tuple(
        one
        for engine in machine.engines or ()
        if engine.name != "podman" and engine.is_running is False
        for one in fact("Docker's daemon does not answer", "docker info")
    )


RULE = Rule(
    check=check,
    prior=60,
    fact_checks=(FactCheck(sign="docker-service-failed", read=_in_facts, severity="note"),),
    signatures=(
        signature(
            "docker-daemon-unreached",
            "Cannot connect to the Docker daemon",
            "connect to Docker daemon",
            "Is the docker daemon running",
            "if the daemon is running",
            "failed to connect to the docker API",
            "docker_engine",
            "dockerDesktopLinuxEngine",
            "docker.sock",
            "podman.sock",
            "containerd.sock",
            "Cannot connect to Podman",
            "Error while fetching server API version",
            pattern=r"(?:Cannot|Couldn't) connect to (?:(?:the )?Docker daemon|Podman)"
            r"|Is the docker daemon running"
            r"|failed to connect to the docker API|if the daemon is running"
            r"|(?:docker_engine|dockerDesktop\w{0,20}Engine).{0,60}(?:cannot find the file"
            r"|The system cannot)|(?:docker|podman|containerd)\.sock.{0,30}"
            r"(?:connection refused|no such file)"
            r"|server API version.{0,120}(?:FileNotFoundError|ConnectionRefused|CreateFile)",
        ),
        signature(
            "docker-service-failed",
            "docker.service",
            pattern=r"docker\.service: (?:Failed with|Start request repeated|Main process exited)"
            r"|Job for docker\.service failed",
        ),
    ),
)
