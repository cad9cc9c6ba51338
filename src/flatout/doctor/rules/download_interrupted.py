"""A download was interrupted or corrupted.

**Checks.** Reads that ended early, and checksums that do not match.

**Why it matters.** Connections break, proxies cut off long downloads, and a broken file in a cache
stays broken.

**Example.** `urllib3.exceptions.IncompleteRead: IncompleteRead(1048576 bytes read, 2195845 more
expected)`

**Fix.** Download it again without the cache; safe.

**Source.** pip.pypa.io/en/stable/topics/caching/; pip.pypa.io/en/stable/topics/secure-installs/.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """Reads that ended early, and checksums that do not match."""
    if not case.sees("download-cut-off"):
        return None
    return Finding(
        rule="download-interrupted",
        severity="error",
        certainty="likely",
        problem="A download was interrupted or corrupted.",
        because="the connection broke, or a proxy or cache returned something else",
        evidence=case.evidence("download-cut-off"),
        fixes=(
            Fix(
                text="download again without the cache",
                safety="safe",
                commands=("pip install --no-cache-dir <package>",),
                changes="the environment",
            ),
        ),
    )


RULE = Rule(
    check=check,
    prior=40,
    signatures=(
        signature(
            "download-cut-off",
            "IncompleteRead",
            "ChunkedEncodingError",
            "PACKAGES DO NOT MATCH THE HASHES",
            "Consistency check failed",
            "Hash Sum mismatch",
            "ChecksumMismatchError",
            "Hash mismatch for",
            "ProtocolError",
            "unexpected EOF while reading",
            "invalid hash value",
            "Connection broken",
            pattern=r"IncompleteRead\(|ChunkedEncodingError|DO NOT MATCH THE HASHES"
            r"|Consistency check failed: file should be|Hash Sum"
            r" mismatch|ChecksumMismatchError"
            r"|Hash mismatch for|Connection broken:|RuntimeError: invalid hash value",
        ),
    ),
)
