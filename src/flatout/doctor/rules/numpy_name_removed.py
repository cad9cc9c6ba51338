"""The code uses a name that NumPy has removed.

**Checks.** NumPy's errors about names removed in 1.24 and 2.0.

**Why it matters.** `np.float`, `np.bool` and others were removed in 1.24, `np.float_` and `np.Inf`
in 2.0.

**Example.** `module 'numpy' has no attribute 'float'`

**Fix.** Install a newer version of the package that uses the name, or an older NumPy; asks first.

**Source.** numpy.org/doc/stable/release/1.24.0-notes.html, numpy_2_0_migration_guide.html.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix

_SIGNS = ("numpy-name-gone",)


def check(case: Case) -> Finding | None:
    """One of the messages was printed."""
    if not case.sees(*_SIGNS):
        return None
    return Finding(
        rule="numpy-name-removed",
        severity="error",
        certainty="likely",
        problem="The code uses a name that NumPy has removed.",
        evidence=case.evidence(*_SIGNS),
        fixes=(
            Fix(
                text="update the package that uses the name; or install an older NumPy",
                safety="ask",
                commands=("pip install 'numpy<1.24'",),
                changes="replaces NumPy in this environment",
                undo="pip install --upgrade numpy",
            ),
        ),
    )


RULE = Rule(
    check=check,
    prior=20,
    signatures=(
        signature(
            "numpy-name-gone",
            "module 'numpy' has no attribute",
            "was removed in the NumPy 2.0 release",
        ),
    ),
)
