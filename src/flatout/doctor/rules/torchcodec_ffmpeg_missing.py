"""torchcodec cannot find FFmpeg.

**Checks.** torchcodec's errors about its libraries.

**Why it matters.** torchaudio and datasets read audio and video with torchcodec, which loads the
system's FFmpeg 4 to 7 and works with one torch version.

**Example.** `RuntimeError: Could not load libtorchcodec.`

**Fix.** Install FFmpeg; asks for root.

**Source.** github.com/meta-pytorch/torchcodec, README.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix

_SIGNS = ("torchcodec-unloaded",)


def check(case: Case) -> Finding | None:
    """One of the messages was printed."""
    if not case.sees(*_SIGNS):
        return None
    return Finding(
        rule="torchcodec-ffmpeg-missing",
        severity="error",
        problem="torchcodec cannot find FFmpeg.",
        evidence=case.evidence(*_SIGNS),
        fixes=(
            Fix(
                text="install FFmpeg, and the torchcodec for this torch version",
                safety="ask",
                commands=("sudo apt-get install ffmpeg",),
                where="linux",
                changes="installs a system package",
                undo="sudo apt-get remove ffmpeg",
            ),
        ),
    )


RULE = Rule(
    check=check,
    prior=60,
    signatures=(signature("torchcodec-unloaded", "Could not load libtorchcodec"),),
    explains=(
        "extension-abi-mismatch",
        "windows-missing-runtime-dll",
    ),
)
