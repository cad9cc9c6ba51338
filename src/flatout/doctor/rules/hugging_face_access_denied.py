"""Hugging Face denied access to the model or data set.

**Checks.** 401 and 403 responses, and notices of gated repositories.

**Why it matters.** Access to some models must be requested on their page, with the account whose
token is used. A repository that does not exist gives the same response.

**Example.** `GatedRepoError: 401 Client Error. Cannot access gated repo for url ...`

**Fix.** Request access on the model's page, then run `hf auth login` or set HF_TOKEN; asks first.

**Source.** huggingface.co/docs/hub/models-gated; huggingface.co/docs/huggingface_hub/guides/cli.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """401 and 403 responses, and notices of gated repositories."""
    if not case.sees("hugging-face-refused"):
        return None
    return Finding(
        rule="hugging-face-access-denied",
        severity="error",
        problem="Hugging Face denied access to the model or data set.",
        because=(
            "the model is gated or private, its name is misspelled, or no valid token was sent"
        ),
        evidence=case.evidence("hugging-face-refused"),
        fixes=(
            Fix(
                text="request access on the model's page, then log in",
                safety="ask",
                commands=("hf auth login",),
                changes="stores a token in the home folder",
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
