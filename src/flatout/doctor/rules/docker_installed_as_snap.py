"""Docker is installed as a snap, which the NVIDIA Container Toolkit does not support.

**Checks.** Paths and commands of the snap, with a container that gets no GPU. On the machine:
Docker's program or folder under `/snap`, with a GPU.

**Why it matters.** A snap has its own root file system: it sees neither the toolkit nor the
driver's libraries, and does not read /etc/docker.

**Example.** `/snap/docker/2915/bin/dockerd`, with `could not select device driver`

**Fix.** Remove the snap and install Docker from its own repository; asks first. Its images and
volumes are not carried over.

**Source.** https://docs.docker.com/engine/install/ubuntu;
https://github.com/NVIDIA/nvidia-docker/issues/1642
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Certainty, Finding, Fix
from flatout.schema.machine import Machine

FAILURES = (
    "gpu-driver-not-selected", "runtime-unknown", "toolkit-program-missing", "container-cli-failed",
    "nvml-library-missing", "nvml-unknown-error", "no-driver-found", "cdi-unresolved",
)  # fmt: skip


def check(case: Case) -> Finding | None:
    """The snap was seen; only a note if nothing fails."""
    if not case.sees("docker-snap"):
        return None
    has_failed = case.sees(*FAILURES)
    certainty: Certainty = "decided" if has_failed else "possible"
    return Finding(
        rule="docker-installed-as-snap",
        severity="error" if has_failed else "note",
        certainty=certainty,
        problem=(
            "Docker is installed as a snap, which the NVIDIA Container Toolkit does not support."
        ),
        evidence=case.evidence("docker-snap", *FAILURES),
        fixes=(
            Fix(
                text="replace the snap with Docker's own packages",
                safety="ask",
                commands=("sudo snap remove docker", "sudo apt-get install docker-ce"),
                where="host",
                changes="removes the snap with its images, containers and volumes",
            ),
        ),
        confirm=("snap list docker", "which docker", "docker info | grep 'Docker Root Dir'"),
    )


def _in_facts(machine: Machine) -> Facts:
    """Docker is a snap, and there is a GPU for its containers."""
    if not machine.gpus:
        return ()
    return tuple(
        one
        for engine in machine.engines or ()
        if engine.name == "docker" and engine.is_snap
        for one in fact("Docker is under /snap", "docker info")
    )


RULE = Rule(
    check=check,
    prior=75,
    fact_checks=(
        FactCheck(sign="docker-snap", read=_in_facts, severity="warning"),
    ),
    signatures=(
        signature(
            "docker-snap",
            "snap",
            "canonical",
            "/snap/docker",
            "/var/snap/docker",
            "/snap/bin/docker",
            pattern=r"(?:/var)?/snap/docker\b|/snap/bin/docker\b|snap(?: install|\.)\s?docker\b"
            r"|^docker\s+\d[\w.+~-]{0,30}\s+\d+\s+\S{1,30}\s+canonical|snap list docker",
        ),
        signature(
            "container-cli-failed",
            "nvidia-container-cli",
            pattern=r"nvidia-container-cli(?:\.real)?: (?!requirement)\w+ error",
        ),
    ),
    explains=("docker-nvidia-toolkit-missing", "docker-nvidia-runtime-not-configured",
              "host-nvidia-driver-missing", "container-gpu-lost-after-daemon-reload"),
)  # fmt: skip
