"""One of your files has the name of an imported module.

**Checks.** Imports that load a local, partially initialized file.

**Why it matters.** Python searches the script's folder first: every import gets a `torch.py` or
`random.py` there.

**Example.** `AttributeError: partially initialized module 'torch' has no attribute 'nn' (most
likely due to a circular import)`

**Fix.** Rename the file, and delete its `__pycache__`; by hand.

**Source.** docs.python.org/3/library/sys_path_init.html.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """Imports that load a local, partially initialized file."""
    if not case.sees("partially-initialized"):
        return None
    return Finding(
        rule="own-file-shadows-module",
        severity="error",
        certainty="likely",
        problem="One of your files has the name of an imported module.",
        because="Python searches the script's folder before all others",
        evidence=case.evidence("partially-initialized"),
        fixes=(
            Fix(
                text="rename the file, and delete its compiled copy in __pycache__",
            ),
        ),
        confirm=('python -c "import <module>; print(<module>.__file__)"',),
    )


RULE = Rule(
    check=check,
    prior=45,
    signatures=(
        signature(
            "partially-initialized",
            "partially initialized module",
            "consider renaming",
            pattern=r"partially initialized module '[\w.]{1,40}' has no attribute"
            r"|consider renaming '[^']{1,200}'",
        ),
    ),
)
