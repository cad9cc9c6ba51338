"""apt no longer accepts how this repository's key was signed: with SHA-1.

**Checks.** The policy of apt's verifier, sqv.

**Why it matters.** From February 2026 on apt in Debian 13 and later rejects SHA-1, with which
several older keys vouch for themselves.

**Example.** `Policy rejected non-revocation signature (PositiveCertification) requiring second
pre-image resistance because: SHA1 is not considered secure`

**Fix.** The newest key package of that repository, for NVIDIA `cuda-keyring` of the
distribution's own folder; asked first.

**Source.** manpages.debian.org/testing/apt; wiki.debian.org/DebianRepository/UseThirdParty.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """The policy of apt's verifier, sqv."""
    if not case.sees("sha1-not-secure"):
        return None
    return Finding(
        rule="apt-refuses-old-signature",
        severity="error",
        problem="apt no longer accepts how this repository's key was signed: with SHA-1.",
        because="SHA-1 is not considered secure any more, and the key vouches for itself with it",
        evidence=case.evidence("sha1-not-secure"),
        fixes=(
            Fix(
                text="install the repository's newest key",
                safety="ask",
                where="linux",
                changes="the keys that apt accepts",
            ),
        ),
    )


RULE = Rule(
    check=check,
    prior=65,
    signatures=(
        signature(
            "sha1-not-secure",
            "is not considered secure since",
            "Policy rejected non-revocation signature",
            "uses weak algorithm",
            pattern=r"SHA-?1 is not considered secure|Policy rejected non-revocation signature",
        ),
    ),
    explains=("apt-key-missing-other-repo",),
)
