"""conda finds no set of packages that fits.

**Checks.** What conda and mamba say when they cannot solve, or do not find a package.

**Why it matters.** Channels that do not go together, a Python that is too new, or `pytorch` from
a channel that ended with 2.5.

**Example.** `LibMambaUnsatisfiableError: Encountered problems while solving`

**Fix.** A fresh environment from conda-forge alone (`pytorch-gpu`), or pip inside of it; asked
first.

**Source.** docs.conda.io/projects/conda/en/stable/user-guide/concepts/conda-performance.html;
pytorch/pytorch#138506.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """What conda and mamba say when they cannot solve, or do not find a package."""
    if not case.sees("conda-unsatisfiable"):
        return None
    return Finding(
        rule="conda-solve-failed",
        severity="error",
        certainty="likely",
        problem="conda finds no set of packages that fits.",
        because="no versions in these channels go together, or the channel does not have the "
        "package",
        evidence=case.evidence("conda-unsatisfiable"),
        fixes=(
            Fix(
                text="make a fresh environment from one channel",
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
