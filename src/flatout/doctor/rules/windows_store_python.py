"""`python` is Windows' link to the Store, not Python.

**Checks.** The message of the placeholder link.

**Why it matters.** Windows ships links named python.exe that open the Store and come early on PATH.

**Example.** `Python was not found; run without arguments to install from the Microsoft Store`

**Fix.** Use `py -3`, or turn off the link under App execution aliases; by hand.

**Source.** docs.python.org/3/using/windows.html.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """The message of the placeholder link."""
    if not case.sees("store-python"):
        return None
    return Finding(
        rule="windows-store-python",
        severity="error",
        problem="`python` is Windows' link to the Store, not Python.",
        because="the link python.exe comes before Python on PATH, or Python is not installed",
        evidence=case.evidence("store-python"),
        fixes=(
            Fix(
                text="use the `py` launcher, or install Python",
                safety="ask",
                commands=("py -3 --version", "winget install Python.Python.3.12"),
                where="powershell",
                changes="installs Python",
            ),
        ),
    )


RULE = Rule(
    check=check,
    prior=60,
    signatures=(
        signature(
            "store-python",
            "Python was not found; run without arguments",
            "App execution aliases",
            "App Execution Aliases",
            "install from the Microsoft Store",
        ),
    ),
)
