"""Docker's configuration is invalid, so the daemon does not start.

**Checks.** dockerd's errors about /etc/docker/daemon.json.

**Why it matters.** With an extra comma, an unknown key, or an option that is also given on the
service's command line, Docker does not start at all.

**Example.** `unable to configure the Docker daemon with file /etc/docker/daemon.json`

**Fix.** Correct the file; `dockerd --validate` shows what is wrong; by hand.

**Source.** https://docs.docker.com/engine/daemon/troubleshoot
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """dockerd rejects the file."""
    if not case.sees("daemon-json-refused"):
        return None
    return Finding(
        rule="docker-daemon-settings-invalid",
        severity="error",
        problem="Docker's configuration is invalid, so Docker does not start.",
        evidence=case.evidence("daemon-json-refused"),
        fixes=(
            Fix(
                text="correct /etc/docker/daemon.json, and start Docker",
                commands=(
                    "sudo dockerd --validate --config-file=/etc/docker/daemon.json",
                    "sudo systemctl restart docker",
                ),
                where="host",
            ),
        ),
        confirm=("journalctl -u docker -n 50",),
    )


RULE = Rule(
    check=check,
    prior=75,
    signatures=(
        signature(
            "daemon-json-refused",
            "unable to configure the Docker daemon with file",
            "directives are specified both as a flag and in the configuration file",
            "directives don't match any configuration option",
        ),
    ),
    explains=("docker-daemon-not-running",),
)
