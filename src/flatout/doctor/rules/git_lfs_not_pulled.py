"""A file is only a Git LFS pointer or an HTML page, not the real content.

**Checks.** Loaders that find an invalid first character in the file.

**Why it matters.** `git clone` without Git LFS leaves 130-byte pointer files, and downloads that
need a login leave an HTML page.

**Example.** `_pickle.UnpicklingError: invalid load key, 'v'.`

**Fix.** `git lfs install && git lfs pull`, or `hf download`; safe.

**Source.** git-lfs.com; huggingface.co/docs/hub/repositories-getting-started.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """Loaders that find an invalid first character in the file."""
    if not case.sees("lfs-pointer"):
        return None
    return Finding(
        rule="git-lfs-not-pulled",
        severity="error",
        problem="A file is only a Git LFS pointer or an HTML page, not the real content.",
        because=(
            "Git LFS was not installed when the repository was cloned, or the download "
            "returned a web page"
        ),
        evidence=case.evidence("lfs-pointer"),
        fixes=(
            Fix(
                text="fetch the real files",
                safety="ask",
                commands=("git lfs install", "git lfs pull"),
                changes="downloads the files of this repository",
            ),
        ),
        confirm=("head -c 200 <file>",),
    )


RULE = Rule(
    check=check,
    prior=60,
    signatures=(
        signature(
            "lfs-pointer",
            "invalid load key",
            "git-lfs.github.com/spec",
            "smudge filter lfs failed",
            "HeaderTooLarge",
            "git-lfs: command not found",
            "git: 'lfs' is not a git command",
            pattern=r"invalid load key, \W[v<]\W|git-lfs\.github\.com/spec"
            r"|smudge filter lfs failed|HeaderTooLarge|git-lfs: (?:command )?not found"
            r"|'lfs' is not a git command",
        ),
    ),
    explains=("checkpoint-damaged",),
)
