"""The environment's folder is not writable.

**Checks.** Permission errors of pip, uv and conda.

**Why it matters.** Folders of the system, of root or of another user cannot be changed; files
created by `sudo pip` belong to root.

**Example.** `ERROR: Could not install packages due to an OSError: [Errno 13] Permission denied`

**Fix.** Use your own environment; asks first. Never use `sudo pip`.

**Source.** docs.python.org/3/library/venv.html; pip.pypa.io/en/stable/user_guide/.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """Permission errors of pip, uv and conda."""
    if not case.sees("environment-not-writable"):
        return None
    return Finding(
        rule="python-environment-not-writable",
        severity="error",
        problem="The environment's folder is not writable.",
        because="the environment belongs to the system, to root or to another user",
        evidence=case.evidence("environment-not-writable"),
        fixes=(
            Fix(
                text="create your own environment",
                safety="ask",
                commands=("python3 -m venv .venv", ". .venv/bin/activate"),
                changes="a new folder .venv",
                undo="rm -r .venv",
            ),
        ),
        confirm=("python -m site", "id"),
    )


RULE = Rule(
    check=check,
    prior=50,
    signatures=(
        signature(
            "environment-not-writable",
            "Could not install packages due to an",
            "EnvironmentNotWritableError",
            "NoWritableEnvsDirError",
            "NoWritablePkgsDirError",
            "Permission denied",
            "Check the permissions",
            pattern=r"Could not install packages due to an (?:OSError"
            r"|EnvironmentError): \[(?:Errno 13|WinError"
            r" 5)\]|EnvironmentNotWritableError"
            r"|NoWritable(?:Envs|Pkgs)DirError|(?:site|dist)-packages.{0,120}Permiss"
            r"ion denied"
            r"|Permission denied.{0,160}(?:site|dist)-packages",
        ),
    ),
)
