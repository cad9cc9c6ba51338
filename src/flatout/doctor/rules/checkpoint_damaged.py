"""A file of weights or data is cut off or damaged.

**Checks.** Readers of torch, safetensors, HDF5, zip and images that stop in the middle.

**Why it matters.** A disk that was full, a run that was killed while it saved, or a download that
was cut off.

**Example.** `PytorchStreamReader failed reading zip archive: failed finding central directory`

**Fix.** Download it again, or use the checkpoint before; by hand.

**Source.** pytorch/pytorch: caffe2/serialize/inline_container.cc;
huggingface.co/docs/safetensors.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """Readers of torch, safetensors, HDF5, zip and images that stop in the middle."""
    if not case.sees("file-cut-off"):
        return None
    return Finding(
        rule="checkpoint-damaged",
        severity="error",
        certainty="likely",
        problem="A file of weights or data is cut off or damaged.",
        because="saving or downloading ended in the middle",
        evidence=case.evidence("file-cut-off"),
        fixes=(
            Fix(
                text="delete the file and fetch it again, or take the checkpoint before it",
                safety="ask",
                commands=("ls -l <file>",),
                changes="nothing",
            ),
        ),
    )


RULE = Rule(
    check=check,
    prior=50,
    signatures=(
        signature(
            "file-cut-off",
            "PytorchStreamReader failed",
            "failed finding central directory",
            "MetadataIncompleteBuffer",
            "InvalidHeaderDeserialization",
            "truncated file",
            "File is not a zip file",
            "image file is truncated",
            "Unexpected end of file",
            "corrupted file",
            "incomplete metadata",
            "CRC-32",
            "unexpected EOF, expected",
            pattern=r"PytorchStreamReader failed|failed finding central directory"
            r"|MetadataIncompleteBuffer|InvalidHeaderDeserialization|truncated"
            r" file|BadZipFile"
            r"|image file is truncated|unexpected EOF, expected \d+ more bytes|Bad"
            r" CRC-32"
            r"|Error while deserializing header",
        ),
    ),
)
