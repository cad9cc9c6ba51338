"""A server's download rate limit has been reached.

**Checks.** 429 responses and pull limits.

**Why it matters.** Docker Hub, Hugging Face and GitHub count requests per address or account. A
company, cluster or university often shares one address.

**Example.** `toomanyrequests: You have reached your pull rate limit.`

**Fix.** Log in, wait, or use a mirror; asks first.

**Source.** docs.docker.com/docker-hub/usage/; huggingface.co/docs/hub/rate-limits.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """429 responses and pull limits."""
    if not case.sees("rate-limited"):
        return None
    return Finding(
        rule="download-rate-limited",
        severity="error",
        problem="A server's download rate limit has been reached.",
        because="requests are counted per address or account",
        evidence=case.evidence("rate-limited"),
        fixes=(
            Fix(
                text="log in, so that your account's limit applies",
                safety="ask",
                commands=("docker login", "hf auth login"),
                changes="stores a token in the home folder",
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
