"""One package repository is named twice, with different keys.

**Checks.** apt's complaint of the option Signed-By.

**Why it matters.** `cuda-keyring` writes a source list of its own. One that was added by hand
before names another key, and apt stops altogether.

**Example.** `E: Conflicting values set for option Signed-By regarding source
https://developer.download.nvidia.com/...`

**Fix.** Remove the older of both files in /etc/apt/sources.list.d; asked first.

**Source.** manpages.debian.org/sources.list; docs.nvidia.com/cuda/cuda-installation-guide-linux/.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """apt's complaint of the option Signed-By."""
    if not case.sees("signed-by-conflict"):
        return None
    return Finding(
        rule="apt-signed-by-conflict",
        severity="error",
        problem="One package repository is named twice, with different keys.",
        because="two files in /etc/apt/sources.list.d name the repository",
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
                changes="the sources of apt",
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
