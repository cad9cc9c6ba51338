"""The Triton version does not match the package that uses it.

**Checks.** Names that are no longer, or not yet, in Triton. On the machine: the Triton version that
torch's metadata requires.

**Why it matters.** Triton's internal names change with each version; torch needs exactly the
version it was built with.

**Example.** `ImportError: cannot import name 'AttrsDescriptor' from 'triton.compiler.compiler'`

**Fix.** Install the version that torch requires; asks first.

**Source.** triton-lang/triton#4236; bitsandbytes-foundation/bitsandbytes#1492;
woct0rdho/triton-windows#97.
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, unmet
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix
from flatout.schema.machine import Machine

_SIGNS = ("triton-name-missing",)


def check(case: Case) -> Finding | None:
    """One of the messages was printed."""
    if not case.sees(*_SIGNS):
        return None
    return Finding(
        rule="triton-version-mismatch",
        severity="error",
        problem=("The Triton version does not match the package that uses it."),
        evidence=case.evidence(*_SIGNS),
        fixes=(
            Fix(
                text="install the Triton version for this torch",
                safety="ask",
                commands=(
                    (
                        'pip install --force-reinstall --no-deps "$(python -c "from '
                        "importlib.metadata import requires; print(next(r.split(';')[0] for"
                        " r in requires('torch') if 'triton' in r))\")\""
                    ),
                ),
                changes="replaces Triton in this environment",
            ),
        ),
        confirm=("pip list | grep -iE 'triton|torch'",),
    )


def _in_facts(machine: Machine) -> Facts:
    """torch's own requirement."""
    return unmet(machine, {"triton", "pytorch-triton", "triton-windows"})


RULE = Rule(
    check=check,
    prior=60,
    fact_checks=(FactCheck(sign="triton-name-missing", read=_in_facts),),
    signatures=(
        signature(
            "triton-name-missing",
            "triton.ops",
            "from 'triton",
            "module 'triton",
            "triton.language",
            pattern=r"No module named 'triton\.\w|cannot import name '\w+' from 'triton|"
            r"module 'triton[\w.]{0,40}' has no attribute",
        ),
    ),
    explains=("triton-missing",),
)
