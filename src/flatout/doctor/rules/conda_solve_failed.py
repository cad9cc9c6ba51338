"""conda cannot find a compatible set of packages.

**Checks.** conda's and mamba's errors when they cannot solve or cannot find a package.

**Why it matters.** The channels are incompatible, Python is too new, or `pytorch` comes from a
channel that ended with 2.5.

**Example.** `LibMambaUnsatisfiableError: Encountered problems while solving`

**Fix.** Create a fresh environment from conda-forge only (`pytorch-gpu`), or use pip inside it;
asks first.

**Source.** docs.conda.io/projects/conda/en/stable/user-guide/concepts/conda-performance.html;
pytorch/pytorch#138506.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """conda's and mamba's errors when they cannot solve or cannot find a package."""
    if not case.sees("conda-unsatisfiable"):
        return None
    return Finding(
        rule="conda-solve-failed",
        severity="error",
        certainty="likely",
        problem="conda cannot find a compatible set of packages.",
        because=(
            "no versions in these channels are compatible, or the channel does not have the package"
        ),
        evidence=case.evidence("conda-unsatisfiable"),
        fixes=(
            Fix(
                text="create a fresh environment from one channel",
                safety="ask",
                commands=("conda create -n train -c conda-forge --override-channels pytorch-gpu",),
                changes="a new environment",
                undo="conda env remove -n train",
            ),
        ),
    )


RULE = Rule(
    check=check,
    prior=40,
    signatures=(
        signature(
            "conda-unsatisfiable",
            "LibMambaUnsatisfiableError",
            "UnsatisfiableError",
            "PackagesNotFoundError",
            "ResolvePackageNotFound",
            "Could not solve for environment specs",
            "Encountered problems while solving",
            "SpecsConfigurationConflictError",
            "packages are not available from current channels",
            "failed with initial frozen solve",
            pattern=r"(?:LibMamba)?UnsatisfiableError:|PackagesNotFoundError"
            r"|ResolvePackageNotFound|Could not solve for environment specs"
            r"|problems while solving|SpecsConfigurationConflict"
            r"|not available from current channels",
        ),
    ),
)
