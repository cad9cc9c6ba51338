"""A file is only a pointer of Git LFS, or a page, in place of what was to be loaded.

**Checks.** Loaders that read a first letter which no such file has.

**Why it matters.** `git clone` without Git LFS leaves pointers of 130 bytes, and downloads that
need a login leave a page of HTML.

**Example.** `_pickle.UnpicklingError: invalid load key, 'v'.`

**Fix.** `git lfs install && git lfs pull`, or `hf download`; safe.

**Source.** git-lfs.com; huggingface.co/docs/hub/repositories-getting-started.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """Loaders that read a first letter which no such file has."""
    if not case.sees("lfs-pointer"):
        return None
    return Finding(
        rule="git-lfs-not-pulled",
        severity="error",
        problem="A file is only a pointer of Git LFS, or a page, in place of what was to be "
        "loaded.",
        because="Git LFS was not there when it was cloned, or the download gave a page",
        evidence=case.evidence("lfs-pointer"),
        fixes=(
            Fix(
                text="fetch the files themselves",
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
