"""The image is for another processor architecture or operating system.

**Checks.** Images without a manifest for this platform, and "exec format error".

**Why it matters.** Images for arm64 do not run on x86-64, and Linux images do not run while Docker
Desktop is switched to Windows containers.

**Example.** `no matching manifest for windows/amd64 10.0.19045 in the manifest list entries`

**Fix.** Choose the image for this platform, or switch Docker Desktop to Linux containers; by hand.

**Source.** https://docs.docker.com/build/building/multi-platform
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """The registry or the kernel says so."""
    if not case.sees("platform-without-image", "image-exec-format"):
        return None
    return Finding(
        rule="container-image-wrong-platform",
        severity="error",
        problem="The image is for another processor architecture or operating system.",
        evidence=case.evidence("platform-without-image", "image-exec-format"),
        fixes=(
            Fix(
                text=(
                    "choose the image for this platform; on Windows, switch Docker Desktop "
                    "to Linux containers"
                ),
            ),
        ),
        confirm=("docker version", "uname -m"),
    )


RULE = Rule(
    check=check,
    prior=60,
    signatures=(
        signature(
            "platform-without-image",
            "no matching manifest for",
            "does not match the specified platform",
            "does not match the detected host platform",
        ),
        signature(
            "image-exec-format",
            "exec format error",
            pattern=r"(?:standard_init_linux|exec (?:user process|/)\S{0,60}|exec user process"
            r" caused).{0,60}exec format error",
        ),
    ),
)
