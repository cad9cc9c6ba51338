"""A server refuses more downloads until some time has passed.

**Checks.** Answers 429 and limits on pulls.

**Why it matters.** Docker Hub, Hugging Face and GitHub count requests of an address or account. A
company, a cluster or a university shares one address.

**Example.** `toomanyrequests: You have reached your pull rate limit.`

**Fix.** Log in, wait, or a mirror; asked first.

**Source.** docs.docker.com/docker-hub/usage/; huggingface.co/docs/hub/rate-limits.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """Answers 429 and limits on pulls."""
    if not case.sees("rate-limited"):
        return None
    return Finding(
        rule="download-rate-limited",
        severity="error",
        problem="A server refuses more downloads until some time has passed.",
        because="requests are counted for an address or an account",
        evidence=case.evidence("rate-limited"),
        fixes=(
            Fix(
                text="log in, so that the limit of an account counts",
                safety="ask",
                commands=("docker login", "hf auth login"),
                changes="keeps a token in the home folder",
                undo="docker logout",
            ),
        ),
    )


RULE = Rule(
    check=check,
    prior=50,
    signatures=(
        signature(
            "rate-limited",
            "toomanyrequests",
            "reached your pull rate limit",
            "429 Client Error",
            "Too Many Requests",
            "HTTP 429",
            "API rate limit exceeded",
            pattern=r"toomanyrequests|pull rate limit|429 Client Error"
            r"|429.{0,20}Too Many Requests|HTTP(?:Error)? 429|API rate limit exceeded",
        ),
    ),
)
