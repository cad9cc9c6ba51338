"""This build is not on PyPI, and its index was not given.

**Checks.** Versions with `+cu` or `+cpu` that pip or uv cannot find.

**Why it matters.** PyPI has one build of each version. Builds for other CUDA versions are in the
frameworks' own indexes, which do not have every version for every CUDA.

**Example.** `ERROR: Could not find a version that satisfies the requirement torch==2.1.0+cu118`

**Fix.** Use `--index-url https://download.pytorch.org/whl/cu118`; asks first.

**Source.** pytorch.org/get-started/previous-versions/;
docs.astral.sh/uv/guides/integration/pytorch/.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """A local version was requested but not found, or uv stopped at the first index."""
    local = case.value("no-matching-version", "local")
    if local is None and not case.sees("local-version-not-found", "uv-first-index"):
        return None
    build = (local or "+cu126")[1:]
    return Finding(
        rule="wheel-index-not-given",
        severity="error",
        certainty="likely" if case.sees("wheel-tag-missing", "python-not-supported") else "decided",
        problem="This build is not on PyPI, and its index was not given.",
        because="PyPI has one build of each version; others are in the frameworks' own indexes",
        evidence=case.evidence("no-matching-version", "local-version-not-found", "uv-first-index"),
        fixes=(
            Fix(
                text="install from the build's index",
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
