"""A compiled module was built for another NumPy.

**Checks.** NumPy's own warning about modules compiled for 1.x, sizes and API versions that
differ, and torch without its bridge to NumPy.

**Why it matters.** NumPy 2 changed its binary interface. Modules compiled for 1.x fail with it,
and modules compiled for 2.x may fail with 1.x.

**Example.** `A module that was compiled using NumPy 1.x cannot be run in NumPy 2.1.0 as it may
crash.`

**Fix.** `pip install 'numpy<2'`, or a newer version of the module; asked first.

**Source.** numpy.org/doc/stable/user/troubleshooting-importerror.html; numpy/numpy#11788.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Finding, Fix

_SIGNS = ("numpy-refused",)


def check(case: Case) -> Finding | None:
    """One of the messages was printed."""
    if not case.sees(*_SIGNS) or case.sees("numpy-not-installed"):
        return None
    # Cython warns where NumPy's structures grew, which does no harm, and raises where they shrank.
    is_warning = all("RuntimeWarning" in sign.text for sign in case.signs["numpy-refused"])
    return Finding(
        rule="numpy-abi-mismatch",
        severity="note" if is_warning else "error",
        certainty="possible" if is_warning else "decided",
        problem="A compiled module was built for another NumPy.",
        evidence=case.evidence(*_SIGNS),
        fixes=(
            Fix(
                text="a NumPy of the version that the module was built for",
                safety="ask",
                commands=("pip install 'numpy<2'",),
                changes="replaces NumPy in this environment",
                undo="pip install --upgrade numpy",
            ),
        ),
        confirm=("pip list | grep -i numpy",),
    )


RULE = Rule(
    check=check,
    prior=65,
    signatures=(
        signature(
            "numpy-refused",
            "compiled using NumPy 1.x",
            "_ARRAY_API not found",
            "size changed, may indicate binary",
            "module compiled against API version",
            "module compiled against ABI version",
            "Numpy is not available",
            "multiarray failed to import",
            "downgrade to 'numpy<2'",
        ),
        signature("numpy-not-installed", "No module named 'numpy'"),
    ),
    explains=("extension-abi-mismatch",),
)
