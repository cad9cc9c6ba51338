"""Something cannot be sent to another process.

**Checks.** What pickle refuses, and what a new process does not find.

**Why it matters.** Spawned processes get the data set, the transforms and the functions pickled.
Lambdas, functions inside functions, open files, and what was typed into a notebook cannot be.

**Example.** `AttributeError: Can't pickle local object 'train.<locals>.<lambda>'`

**Fix.** Functions at the top level of a file, files opened in the worker, or `num_workers=0`; by
hand.

**Source.** docs.python.org/3/library/pickle.html (what can be pickled and unpickled);
docs.pytorch.org/docs/stable/notes/windows.html.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """What pickle refuses, and what a new process does not find."""
    if not case.sees("cannot-pickle"):
        return None
    return Finding(
        rule="worker-cannot-pickle",
        severity="error",
        problem="Something cannot be sent to another process.",
        because="spawned processes get everything pickled",
        evidence=case.evidence("cannot-pickle"),
        fixes=(
            Fix(
                text="move lambdas and inner functions to the top level of a file, and open "
                "files in the worker",
            ),
            Fix(
                text="or load in the same process: `num_workers=0`",
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
