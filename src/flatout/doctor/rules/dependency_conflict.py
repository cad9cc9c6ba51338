"""Packages want versions of each other that do not go together.

**Checks.** What pip, uv and poetry say when no choice of versions fits.

**Why it matters.** Frameworks pin their CUDA libraries exactly: two of them in one environment go
together by luck.

**Example.** `ERROR: ResolutionImpossible: for help visit https://pip.pypa.io/...`

**Fix.** An environment for each framework, or looser requirements; by hand.

**Source.** pip.pypa.io/en/stable/topics/dependency-resolution/;
docs.astral.sh/uv/concepts/resolution/.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """The resolver gave up; or pip only warns of a conflict."""
    if not case.sees("resolution-impossible", "resolver-warning"):
        return None
    is_refused = case.sees("resolution-impossible")
    return Finding(
        rule="dependency-conflict",
        severity="error" if is_refused else "note",
        certainty="likely" if is_refused else "possible",
        problem="Packages want versions of each other that do not go together.",
        because="requirements exclude each other",
        evidence=case.evidence("resolution-impossible", "resolver-warning"),
        fixes=(
            Fix(
                text="one environment for each framework, or fewer pins",
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
