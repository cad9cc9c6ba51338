"""`conda activate` is not available in this shell.

**Checks.** conda's error about a shell that is not initialized.

**Why it matters.** `conda activate` is a shell function that `conda init` adds to the shell's
profile. Scripts, Docker builds and new shells lack it.

**Example.** `CondaError: Run 'conda init' before 'conda activate'`

**Fix.** `source <conda>/etc/profile.d/conda.sh` in scripts, or `conda run -n NAME`; safe.

**Source.** docs.conda.io/projects/conda/en/stable/commands/init.html.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """conda's error about a shell that is not initialized."""
    if not case.sees("conda-shell-unknown"):
        return None
    return Finding(
        rule="conda-not-initialized",
        severity="error",
        problem="`conda activate` is not available in this shell.",
        because="`conda activate` is defined in the shell's profile, which scripts do not read",
        evidence=case.evidence("conda-shell-unknown"),
        fixes=(
            Fix(
                text="load it into this shell",
                safety="safe",
                commands=('eval "$(conda shell.bash hook)"', "conda activate <environment>"),
                changes="this shell",
            ),
            Fix(
                text="or run one command in the environment",
                safety="safe",
                commands=("conda run -n <environment> <command>",),
                changes="nothing permanently",
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
