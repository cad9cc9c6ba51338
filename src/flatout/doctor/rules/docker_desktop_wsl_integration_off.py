"""Docker Desktop's integration is off for this WSL distro.

**Checks.** The message of the placeholder command that Docker Desktop installs in each distro.

**Why it matters.** Docker Desktop is available only in the distros enabled in its settings.

**Example.** `The command 'docker' could not be found in this WSL 2 distro.`

**Fix.** Enable it under Docker Desktop, Settings, Resources, WSL integration; by hand.

**Source.** https://docs.docker.com/desktop/features/wsl
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Certainty, Finding, Fix


def check(case: Case) -> Finding | None:
    """The placeholder's message; or Docker is missing or silent where Docker Desktop is used."""
    is_explicit = case.sees("wsl-integration-told")
    is_silent = case.is_wsl and case.sees("docker-command-missing", "docker-daemon-unreached")
    if not is_explicit and not is_silent:
        return None
    certainty: Certainty = "possible"
    if is_explicit:
        certainty = "decided"
    elif case.sees("docker-desktop-named") or case.sees("docker-command-missing"):
        certainty = "likely"
    return Finding(
        rule="docker-desktop-wsl-integration-off",
        severity="error",
        certainty=certainty,
        problem="Docker Desktop's integration is off for this WSL distro.",
        evidence=case.evidence(
            "wsl-integration-told", "docker-command-missing", "docker-daemon-unreached"
        ),
        fixes=(
            Fix(
                text="enable the distro in Docker Desktop: Settings, Resources, WSL integration",
                where="powershell",
            ),
        ),
        confirm=("docker context ls", "wsl.exe --list --verbose"),
    )


RULE = Rule(
    check=check,
    prior=65,
    signatures=(
        signature(
            "wsl-integration-told",
            "could not be found in this WSL",
            "activate the WSL integration",
            "Docker Desktop WSL integration",
        ),
        signature(
            "docker-command-missing",
            "docker",
            pattern=r"docker: (?:command )?not found|command 'docker' not found",
        ),
        signature("docker-desktop-named", "docker-desktop", "Docker Desktop", "dockerDesktop"),
    ),
    explains=("docker-daemon-not-running",),
)
