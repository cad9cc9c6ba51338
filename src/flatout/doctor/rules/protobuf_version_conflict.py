"""The protobuf version does not match the generated code.

**Checks.** protobuf's errors about descriptors and runtimes.

**Why it matters.** Code generated for protobuf 3 fails with 4 and newer, and code of any release
fails with older runtimes.

**Example.** `Descriptors cannot be created directly.`

**Fix.** Install the protobuf version that the generated code needs; asks first.

**Source.** protobuf.dev/news; tensorflow/tensorflow#56077.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix

_SIGNS = ("protobuf-refused",)


def check(case: Case) -> Finding | None:
    """One of the messages was printed."""
    if not case.sees(*_SIGNS):
        return None
    return Finding(
        rule="protobuf-version-conflict",
        severity="error",
        problem="The protobuf version does not match the generated code.",
        evidence=case.evidence(*_SIGNS),
        fixes=(
            Fix(
                text="install a matching protobuf",
                safety="ask",
                commands=("pip install 'protobuf<4'",),
                changes="replaces protobuf in this environment",
            ),
        ),
        confirm=("pip check",),
    )


RULE = Rule(
    check=check,
    prior=50,
    signatures=(
        signature(
            "protobuf-refused",
            "Descriptors cannot",
            "incompatible Protobuf Gencode",
            "downgrade the protobuf package",
            "'MessageFactory' object has no attribute",
            "cannot import name 'builder' from 'google.protobuf",
        ),
    ),
)
