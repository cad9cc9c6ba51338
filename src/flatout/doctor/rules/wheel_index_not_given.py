"""This build is not on PyPI: its index was not named.

**Checks.** Versions with a `+cu` or `+cpu` that pip or uv do not find.

**Why it matters.** PyPI has one build of each version. Those for other CUDA versions stand in the
frameworks' own indexes, and not each CUDA has each version.

**Example.** `ERROR: Could not find a version that satisfies the requirement torch==2.1.0+cu118`

**Fix.** `--index-url https://download.pytorch.org/whl/cu118`; asked first.

**Source.** pytorch.org/get-started/previous-versions/;
docs.astral.sh/uv/guides/integration/pytorch/.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """A local version was asked for and not found, or uv stopped at the first index."""
    local = case.value("no-matching-version", "local")
    if local is None and not case.sees("local-version-not-found", "uv-first-index"):
        return None
    build = (local or "+cu126")[1:]
    return Finding(
        rule="wheel-index-not-given",
        severity="error",
        certainty="likely" if case.sees("wheel-tag-missing", "python-not-supported") else "decided",
        problem="This build is not on PyPI: its index was not named.",
        because="PyPI has one build of each version; others stand in the frameworks' own indexes",
        evidence=case.evidence("no-matching-version", "local-version-not-found", "uv-first-index"),
        fixes=(
            Fix(
                text="name the index of the build",
                safety="ask",
                commands=(
                    f"pip install torch --index-url https://download.pytorch.org/whl/{build}",
                ),
                changes="the environment",
            ),
        ),
        confirm=("pip index versions torch --index-url https://download.pytorch.org/whl/cu126",),
    )


RULE = Rule(
    check=check,
    prior=60,
    signatures=(
        signature(
            "local-version-not-found",
            "there is no version of",
            "No matching distribution found for",
            "not found in the package registry",
            pattern=r"(?:no version of"
            r"|No matching distribution found for)"
            r" ?[\w.-]{2,40}==[\d.]{1,12}\+(?:cu|cpu|rocm|pt"
            r"|xpu)\w{0,12}",
        ),
        signature(
            "uv-first-index",
            "A compatible version may be available on a subsequent index",
            "not at the requested version",
            "index-strategy",
        ),
    ),
    explains=("dependency-conflict", "no-wheel-for-python"),
)
