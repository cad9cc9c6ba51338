"""A weights or data file is truncated or corrupted.

**Checks.** Readers of torch, safetensors, HDF5, zip and image files that fail partway.

**Why it matters.** The disk was full, the run was killed while saving, or a download was
interrupted.

**Example.** `PytorchStreamReader failed reading zip archive: failed finding central directory`

**Fix.** Download it again, or use the previous checkpoint; by hand.

**Source.** pytorch/pytorch: caffe2/serialize/inline_container.cc;
huggingface.co/docs/safetensors.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """Readers of torch, safetensors, HDF5, zip and image files that fail partway."""
    if not case.sees("file-cut-off"):
        return None
    return Finding(
        rule="checkpoint-damaged",
        severity="error",
        certainty="likely",
        problem="A weights or data file is truncated or corrupted.",
        because="saving or downloading was interrupted",
        evidence=case.evidence("file-cut-off"),
        fixes=(
            Fix(
                text="delete the file and download it again, or use the previous checkpoint",
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
