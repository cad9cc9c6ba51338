"""Docker's settings cannot be read, and the daemon does not start.

**Checks.** What dockerd says of /etc/docker/daemon.json.

**Why it matters.** A comma too many, a key it does not know, or an option given twice, also in the
service's command line: Docker then does not start at all.

**Example.** `unable to configure the Docker daemon with file /etc/docker/daemon.json`

**Fix.** Mend the file; `dockerd --validate` tells what is wrong; by hand.

**Source.** https://docs.docker.com/engine/daemon/troubleshoot
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """dockerd says so."""
    if not case.sees("daemon-json-refused"):
        return None
    return Finding(
        rule="docker-daemon-settings-invalid",
        severity="error",
        problem="Docker cannot read its settings, and does not start.",
        evidence=case.evidence("daemon-json-refused"),
        fixes=(
            Fix(
                text="mend /etc/docker/daemon.json, and start Docker",
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
