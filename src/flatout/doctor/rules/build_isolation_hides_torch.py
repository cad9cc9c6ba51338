"""A package is built in an isolated environment without torch.

**Checks.** Builds that cannot find torch although it is installed.

**Why it matters.** pip and uv build in an empty environment that holds only the declared build
requirements. flash-attn, apex, xformers and others need torch to build but do not declare it.

**Example.** `Getting requirements to build wheel did not run successfully ...
ModuleNotFoundError: No module named 'torch'`

**Fix.** `pip install --no-build-isolation`, with torch, setuptools, wheel and ninja installed
first; asks first.

**Source.** pip.pypa.io/en/stable/cli/pip_install/ (--no-build-isolation);
docs.astral.sh/uv/concepts/projects/config/ (build isolation).
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """torch or numpy was not found during a package build."""
    if not case.sees("build-isolation") or not case.sees("build-needs-module"):
        return None
    return Finding(
        rule="build-isolation-hides-torch",
        severity="error",
        problem="A package is built in an isolated environment without torch.",
        because=(
            "pip and uv build in an empty environment, and the package does not declare "
            "torch as a build requirement"
        ),
        evidence=case.evidence("build-isolation", "build-needs-module"),
        fixes=(
            Fix(
                text="build without isolation",
                safety="ask",
                commands=(
                    "pip install torch setuptools wheel ninja packaging",
                    "pip install --no-build-isolation <package>",
                ),
                changes="the environment",
            ),
        ),
    )


RULE = Rule(
    check=check,
    prior=60,
    signatures=(
        signature(
            "build-isolation",
            "requirements to build wheel",
            "build dependencies",
            "build_wheel",
            "build_editable",
            "get_requires_for_build_wheel",
            "metadata-generation-failed",
            "pip-build-env",
            "build-isolation",
            "Failed to build",
            "builds-v0",
            "setup.py egg_info",
            pattern=r"requirements to build (?:wheel|editable)|build_(?:wheel|editable)"
            r"|get_requires_for_build|metadata-generation-failed|pip-build-env"
            r"|no-build-isolation|builds-v0|setup\.py egg_info",
        ),
        signature(
            "build-needs-module",
            "No module named 'torch'",
            "No module named 'numpy'",
            "No module named 'packaging'",
            "No module named 'wheel'",
            "No module named torch",
            "No module named 'psutil'",
            "No module named 'Cython'",
            pattern=r"No module named '?(?:torch|numpy|packaging|wheel|psutil|cython)'?\s*$",
        ),
    ),
    explains=("package-not-in-environment",),
)
