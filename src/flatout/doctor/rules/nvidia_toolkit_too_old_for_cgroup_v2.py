"""The NVIDIA Container Toolkit is too old for this machine's cgroup v2.

**Checks.** The toolkit's error about a missing `devices` subsystem.

**Why it matters.** Distributions since 2021 use cgroup v2, which the toolkit supports since 1.8.

**Example.** `nvidia-container-cli: container error: cgroup subsystem devices not found`

**Fix.** Install a current toolkit; asks first.

**Source.** https://github.com/NVIDIA/nvidia-docker/issues/1447
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """The toolkit looks for cgroup v1."""
    if not case.sees("cgroup-devices-missing"):
        return None
    return Finding(
        rule="nvidia-toolkit-too-old-for-cgroup-v2",
        severity="error",
        problem="The NVIDIA Container Toolkit is too old for this machine's cgroup v2.",
        evidence=case.evidence("cgroup-devices-missing"),
        fixes=(
            Fix(
                text="install a current toolkit",
                safety="ask",
                commands=("sudo apt-get install nvidia-container-toolkit",),
                where="host",
                changes="replaces the toolkit's packages",
            ),
        ),
        confirm=("nvidia-ctk --version", "stat -fc %T /sys/fs/cgroup"),
    )


RULE = Rule(
    check=check,
    prior=70,
    signatures=(signature("cgroup-devices-missing", "cgroup subsystem devices not found"),),
)
