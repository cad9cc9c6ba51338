"""No image has this name and tag.

**Checks.** Registry errors about an unknown manifest.

**Why it matters.** NVIDIA removes old CUDA images, and publishes none without an operating system
in the tag; there is no `latest`.

**Example.** `manifest for nvidia/cuda:11.0-base not found: manifest unknown`

**Fix.** Choose a tag listed in the registry; by hand.

**Source.** https://hub.docker.com/r/nvidia/cuda (deprecated and removed tags)
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """The registry does not know the image."""
    if not case.sees("manifest-unknown"):
        return None
    return Finding(
        rule="container-image-tag-missing",
        severity="error",
        problem="The registry has no image with this name and tag.",
        evidence=case.evidence("manifest-unknown"),
        fixes=(Fix(text="choose a tag listed in the registry; nvidia/cuda has no `latest`"),),
    )


RULE = Rule(
    check=check,
    prior=60,
    signatures=(
        signature(
            "manifest-unknown",
            "manifest unknown",
            "manifest for",
            "pull access denied",
            pattern=r"manifest unknown|manifest for \S{1,200} not found|pull access denied for",
        ),
    ),
)
