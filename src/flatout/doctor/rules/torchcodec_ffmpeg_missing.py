"""torchcodec finds no FFmpeg.

**Checks.** What torchcodec says of its libraries.

**Why it matters.** Audio and video of torchaudio and datasets are read by torchcodec, which loads
FFmpeg 4 to 7 of the system and fits one torch.

**Example.** `RuntimeError: Could not load libtorchcodec.`

**Fix.** Install FFmpeg; asks for root.

**Source.** github.com/meta-pytorch/torchcodec, README.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Finding, Fix

_SIGNS = ("torchcodec-unloaded",)


def check(case: Case) -> Finding | None:
    """One of the messages was printed."""
    if not case.sees(*_SIGNS):
        return None
    return Finding(
        rule="torchcodec-ffmpeg-missing",
        severity="error",
        problem="torchcodec finds no FFmpeg.",
        evidence=case.evidence(*_SIGNS),
        fixes=(
            Fix(
                text="install FFmpeg, and the torchcodec of this torch",
                safety="ask",
                commands=("sudo apt-get install ffmpeg",),
                where="linux",
                changes="installs a package of the system",
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
