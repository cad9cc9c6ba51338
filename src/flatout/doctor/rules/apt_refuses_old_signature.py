"""apt no longer accepts this repository's key: it is signed with SHA-1.

**Checks.** The policy of apt's verifier, sqv.

**Why it matters.** From February 2026 on, apt in Debian 13 and later rejects SHA-1, which several
older keys use for their self-signatures.

**Example.** `Policy rejected non-revocation signature (PositiveCertification) requiring second
pre-image resistance because: SHA1 is not considered secure`

**Fix.** Install that repository's newest key package; for NVIDIA, `cuda-keyring` from the folder of
your distribution; asks first.

**Source.** manpages.debian.org/testing/apt; wiki.debian.org/DebianRepository/UseThirdParty.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """The policy of apt's verifier, sqv."""
    if not case.sees("sha1-not-secure"):
        return None
    return Finding(
        rule="apt-refuses-old-signature",
        severity="error",
        problem="apt no longer accepts this repository's key: it is signed with SHA-1.",
        because="SHA-1 is no longer considered secure, and the key's self-signature uses it",
        evidence=case.evidence("sha1-not-secure"),
        fixes=(
            Fix(
                text="install the repository's newest key",
                safety="ask",
                where="linux",
                changes="the keys that apt trusts",
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
