"""conda wants the terms of Anaconda's channels accepted first.

**Checks.** conda's refusal, by its error.

**Why it matters.** From 2025 on conda asks for the terms of the `defaults` channels, which cost
larger companies money. In scripts and images nobody can answer.

**Example.** `CondaToSNonInteractiveError: Terms of Service have not been accepted for the
following channels.`

**Fix.** `-c conda-forge --override-channels`, which has no such terms; or accept them if they
suit you; asked first.

**Source.** www.anaconda.com/docs/getting-started/tos-plugin;
conda-forge.org/docs/user/introduction/.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """conda's refusal, by its error."""
    if not case.sees("conda-terms"):
        return None
    return Finding(
        rule="conda-terms-not-accepted",
        severity="error",
        problem="conda wants the terms of Anaconda's channels accepted first.",
        because="the environment asks the `defaults` channels",
        evidence=case.evidence("conda-terms"),
        fixes=(
            Fix(
                text="use conda-forge alone",
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
