"""A package repository is listed twice, with different keys.

**Checks.** apt's error about the Signed-By option.

**Why it matters.** `cuda-keyring` writes its own source list. If an earlier one, added by hand,
names another key, apt stops altogether.

**Example.** `E: Conflicting values set for option Signed-By regarding source
https://developer.download.nvidia.com/...`

**Fix.** Remove the older of the two files in /etc/apt/sources.list.d; asks first.

**Source.** manpages.debian.org/sources.list; docs.nvidia.com/cuda/cuda-installation-guide-linux/.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """apt's error about the Signed-By option."""
    if not case.sees("signed-by-conflict"):
        return None
    return Finding(
        rule="apt-signed-by-conflict",
        severity="error",
        problem="A package repository is listed twice, with different keys.",
        because="two files in /etc/apt/sources.list.d list the repository",
        evidence=case.evidence("signed-by-conflict"),
        fixes=(
            Fix(
                text="remove the file that was added by hand",
                safety="ask",
                commands=(
                    "grep -rl developer.download.nvidia.com /etc/apt/sources.list.d",
                    "sudo rm /etc/apt/sources.list.d/<older file>",
                ),
                where="linux",
                changes="apt's sources",
            ),
        ),
    )


RULE = Rule(
    check=check,
    prior=60,
    signatures=(
        signature(
            "signed-by-conflict",
            "Conflicting values set for option Signed-By",
        ),
    ),
)
