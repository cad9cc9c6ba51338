"""Hugging Face does not let this account, or nobody logged in, have that model or data set.

**Checks.** Answers 401 and 403, and the notices of gated repositories.

**Why it matters.** Some models must be asked for on their page, by the account whose token is
used. A repository that does not exist gives the same answer.

**Example.** `GatedRepoError: 401 Client Error. Cannot access gated repo for url ...`

**Fix.** Ask for access on the model's page, then `hf auth login`, or HF_TOKEN; asked first.

**Source.** huggingface.co/docs/hub/models-gated; huggingface.co/docs/huggingface_hub/guides/cli.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """Answers 401 and 403, and the notices of gated repositories."""
    if not case.sees("hugging-face-refused"):
        return None
    return Finding(
        rule="hugging-face-access-denied",
        severity="error",
        problem="Hugging Face does not let this account, or nobody logged in, have that model "
        "or data set.",
        because="the model is gated or private, its name is misspelt, or no valid token was sent",
        evidence=case.evidence("hugging-face-refused"),
        fixes=(
            Fix(
                text="ask for access on the page of the model, then log in",
                safety="ask",
                commands=("hf auth login",),
                changes="keeps a token in the home folder",
                undo="hf auth logout",
            ),
        ),
        confirm=("hf auth whoami",),
    )


RULE = Rule(
    check=check,
    prior=55,
    signatures=(
        signature(
            "hugging-face-refused",
            "GatedRepoError",
            "Cannot access gated repo",
            "gated repo",
            "RepositoryNotFoundError",
            "is restricted and you are not in the authorized list",
            "Repository Not Found for url",
            "Invalid credentials in Authorization header",
            "not a valid model identifier listed on",
            "Invalid username or password",
            "is not a local folder and is not a valid model identifier",
            pattern=r"GatedRepoError|gated repo\b|RepositoryNotFoundError"
            r"|not in the authorized list|Repository Not Found for url"
            r"|Invalid credentials in Authorization|not a valid model identifier"
            r" listed on"
            r"|huggingface.{0,80}Invalid username or password",
        ),
    ),
    explains=("hugging-face-unreachable",),
)
