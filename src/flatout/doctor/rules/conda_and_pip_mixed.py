"""conda and pip have each installed the same package in one environment.

**Checks.** On the machine: packages whose version in conda's records (`conda-meta`) differs from
that in their own metadata.

**Why it matters.** Both install into the same folder. Which library gets loaded is unpredictable,
and conda's next change may remove files that pip installed.

**Example.** `torch: conda has 2.5.1, the environment runs 2.9.1+cu130`

**Fix.** Create a new environment with only one of the two; asks first.

**Source.** docs.conda.io: "Using pip in a conda environment"; pytorch/pytorch#138506.
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact
from flatout.doctor.rule import Case, Rule
from flatout.schema.finding import Finding, Fix
from flatout.schema.machine import Machine


def check(case: Case) -> Finding | None:
    """Two versions of one package are registered."""
    if not case.sees("installed-by-both"):
        return None
    return Finding(
        rule="conda-and-pip-mixed",
        severity="warning",
        problem="conda and pip have installed the same package, in two versions.",
        because="their files are mixed in one folder",
        evidence=case.evidence("installed-by-both"),
        fixes=(
            Fix(
                text="create an environment where only pip installs the framework",
                safety="ask",
                commands=("conda create -n training python=3.12 pip", "conda activate training",
                          "python -m pip install torch"),
                changes="a new environment; the old one stays",
                undo="conda env remove -n training",
            ),
        ),
        confirm=("conda list | grep -iE 'torch|tensorflow|numpy|jaxlib'", "pip list"),
    )  # fmt: skip


def _in_facts(machine: Machine) -> Facts:
    """The examined environment, by both lists."""
    first = next(iter(machine.environments or ()), None)
    if first is None or not first.mixed:
        return ()
    return fact(f"installed by conda and by pip: {', '.join(first.mixed)}", "conda-meta, metadata")


RULE = Rule(
    check=check,
    prior=40,
    fact_checks=(FactCheck(sign="installed-by-both", read=_in_facts, severity="warning"),),
)
