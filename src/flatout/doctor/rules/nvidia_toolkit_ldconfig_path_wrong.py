"""The toolkit calls an ldconfig that this distribution does not have.

**Checks.** The toolkit's errors about the loader's cache.

**Why it matters.** Ubuntu uses /sbin/ldconfig.real, all other distributions /sbin/ldconfig. A
configuration copied between them makes every GPU container fail.

**Example.** `nvidia-container-cli: ldcache error: open failed: /sbin/ldconfig.real: no such file`

**Fix.** Set this distribution's path; asks first.

**Source.** https://github.com/NVIDIA/nvidia-docker/issues/587
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """The toolkit cannot find ldconfig, or it fails."""
    if not case.sees("ldcache-error"):
        return None
    return Finding(
        rule="nvidia-toolkit-ldconfig-path-wrong",
        severity="error",
        problem="The toolkit calls an ldconfig that does not exist or fails.",
        evidence=case.evidence("ldcache-error"),
        fixes=(
            Fix(
                text="set this distribution's path",
                safety="ask",
                commands=(
                    "sudo nvidia-ctk config --set nvidia-container-cli.ldconfig=@/sbin/ldconfig "
                    "--in-place",
                ),
                where="host",
                changes="/etc/nvidia-container-runtime/config.toml",
            ),
        ),
        confirm=(
            "ls -l /sbin/ldconfig*",
            "grep ldconfig /etc/nvidia-container-runtime/config.toml",
        ),
    )


RULE = Rule(
    check=check,
    prior=70,
    signatures=(
        signature(
            "ldcache-error",
            "ldcache error",
            pattern=r"ldcache error: (?:open failed|process \S{1,60} failed|stat failed)",
        ),
    ),
)
