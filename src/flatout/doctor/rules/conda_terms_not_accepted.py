"""conda requires accepting the terms of Anaconda's channels first.

**Checks.** conda's error about unaccepted terms.

**Why it matters.** Since 2025, conda asks you to accept the terms of the `defaults` channels, which
larger companies must pay for. Scripts and image builds cannot answer.

**Example.** `CondaToSNonInteractiveError: Terms of Service have not been accepted for the
following channels.`

**Fix.** `-c conda-forge --override-channels`, which has no such terms; or accept the terms; asks
first.

**Source.** www.anaconda.com/docs/getting-started/tos-plugin;
conda-forge.org/docs/user/introduction/.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """conda's error about unaccepted terms."""
    if not case.sees("conda-terms"):
        return None
    return Finding(
        rule="conda-terms-not-accepted",
        severity="error",
        problem="conda requires accepting the terms of Anaconda's channels first.",
        because="the environment uses the `defaults` channels",
        evidence=case.evidence("conda-terms"),
        fixes=(
            Fix(
                text="use only conda-forge",
                safety="ask",
                commands=(
                    "conda config --add channels conda-forge",
                    "conda config --remove channels defaults",
                ),
                changes="~/.condarc",
                undo="conda config --add channels defaults",
            ),
        ),
    )


RULE = Rule(
    check=check,
    prior=60,
    signatures=(
        signature(
            "conda-terms",
            "CondaToSNonInteractiveError",
            "Terms of Service have not been accepted",
            "CondaToSPermissionError",
        ),
    ),
)
