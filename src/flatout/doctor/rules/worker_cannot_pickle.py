"""An object cannot be pickled for another process.

**Checks.** Errors of pickle, and names that a new process cannot find.

**Why it matters.** Spawned processes receive the data set, transforms and functions pickled.
Lambdas, nested functions, open files and definitions in a notebook cannot be pickled.

**Example.** `AttributeError: Can't pickle local object 'train.<locals>.<lambda>'`

**Fix.** Define functions at the top level of a file, open files in the worker, or use
`num_workers=0`; by hand.

**Source.** docs.python.org/3/library/pickle.html (what can be pickled and unpickled);
docs.pytorch.org/docs/stable/notes/windows.html.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """Errors of pickle, and names that a new process cannot find."""
    if not case.sees("cannot-pickle"):
        return None
    return Finding(
        rule="worker-cannot-pickle",
        severity="error",
        problem="An object cannot be pickled for another process.",
        because="spawned processes receive everything pickled",
        evidence=case.evidence("cannot-pickle"),
        fixes=(
            Fix(
                text=(
                    "move lambdas and nested functions to the top level of a file, and open"
                    " files in the worker"
                ),
            ),
            Fix(
                text="or load data in the main process: `num_workers=0`",
            ),
        ),
    )


RULE = Rule(
    check=check,
    prior=50,
    signatures=(
        signature(
            "cannot-pickle",
            "Can't pickle",
            "cannot pickle",
            "Can't get attribute",
            "Can't get local object",
            "Could not pickle",
            pattern=r"Can't pickle (?:local object|<function|<class)|cannot pickle '"
            r"|Can't get (?:local object|attribute) '[^']{1,80}'(?: on <module"
            r" '(?:__main__"
            r"|__mp_main__))?|Could not pickle",
        ),
    ),
)
