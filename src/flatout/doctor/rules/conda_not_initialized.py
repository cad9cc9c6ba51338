"""This shell does not know `conda activate`.

**Checks.** conda's complaint of a shell that was not set up.

**Why it matters.** `conda activate` is a function that `conda init` writes into the shell's
profile. Scripts, Docker builds and new shells lack it.

**Example.** `CondaError: Run 'conda init' before 'conda activate'`

**Fix.** `source <conda>/etc/profile.d/conda.sh` in scripts, or `conda run -n NAME`; safe.

**Source.** docs.conda.io/projects/conda/en/stable/commands/init.html.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """conda's complaint of a shell that was not set up."""
    if not case.sees("conda-shell-unknown"):
        return None
    return Finding(
        rule="conda-not-initialized",
        severity="error",
        problem="This shell does not know `conda activate`.",
        because="`conda activate` is a function of the shell's profile, which scripts do not read",
        evidence=case.evidence("conda-shell-unknown"),
        fixes=(
            Fix(
                text="make it known to this shell",
                safety="safe",
                commands=('eval "$(conda shell.bash hook)"', "conda activate <environment>"),
                changes="this shell",
            ),
            Fix(
                text="or run one command in the environment",
                safety="safe",
                commands=("conda run -n <environment> <command>",),
                changes="nothing that stays",
            ),
        ),
    )


RULE = Rule(
    check=check,
    prior=60,
    signatures=(
        signature(
            "conda-shell-unknown",
            "Run 'conda init' before",
            "not been properly configured to use 'conda activate'",
            "CommandNotFoundError: Your shell has not been",
            "conda: command not found",
            "'conda' is not recognized",
            pattern=r"Run 'conda init' before|configured to use 'conda activate'"
            r"|conda: command not found|'conda' is not recognized",
        ),
    ),
)
