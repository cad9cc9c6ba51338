"""Packages require conflicting versions of each other.

**Checks.** Errors of pip, uv and poetry when no set of versions satisfies all requirements.

**Why it matters.** Frameworks pin their CUDA libraries exactly, so two frameworks in one
environment are compatible only by luck.

**Example.** `ERROR: ResolutionImpossible: for help visit https://pip.pypa.io/...`

**Fix.** Use one environment per framework, or looser requirements; by hand.

**Source.** pip.pypa.io/en/stable/topics/dependency-resolution/;
docs.astral.sh/uv/concepts/resolution/.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """The resolver gave up; or pip only warns of a conflict."""
    if not case.sees("resolution-impossible", "resolver-warning"):
        return None
    is_refused = case.sees("resolution-impossible")
    return Finding(
        rule="dependency-conflict",
        severity="error" if is_refused else "note",
        certainty="likely" if is_refused else "possible",
        problem="Packages require conflicting versions of each other.",
        because="the requirements conflict",
        evidence=case.evidence("resolution-impossible", "resolver-warning"),
        fixes=(
            Fix(
                text="use one environment per framework, or fewer pins",
                safety="ask",
                commands=("uv venv --python 3.12 <folder>",),
                changes="a new folder",
            ),
        ),
        confirm=("pip check",),
    )


RULE = Rule(
    check=check,
    prior=40,
    signatures=(
        signature(
            "resolution-impossible",
            "ResolutionImpossible",
            "have conflicting dependencies",
            "No solution found when resolving",
            "requirements are unsatisfiable",
            "version solving failed",
            "unsatisfiable",
            pattern=r"ResolutionImpossible|have conflicting dependencies"
            r"|No solution found when resolving|requirements are unsatisfiable"
            r"|version solving failed",
        ),
        signature(
            "resolver-warning",
            "take into account all the packages that are installed",
            "which is incompatible",
            "but you have",
        ),
    ),
)
