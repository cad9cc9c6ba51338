"""PowerShell may not run scripts, so the environment cannot be activated.

**Checks.** PowerShell's error, by its id.

**Why it matters.** Windows' default execution policy blocks all scripts, including `Activate.ps1`.

**Example.** `Activate.ps1 cannot be loaded because running scripts is disabled on this system ...
PSSecurityException`

**Fix.** `Set-ExecutionPolicy -Scope CurrentUser RemoteSigned`; asks first. Or call the
environment's `python.exe` by its path.

**Source.**
learn.microsoft.com/powershell/module/microsoft.powershell.core/about/about_execution_policies;
docs.python.org/3/library/venv.html.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """PowerShell's error, by its id."""
    if not case.sees("scripts-disabled"):
        return None
    return Finding(
        rule="powershell-scripts-disabled",
        severity="error",
        problem="PowerShell may not run scripts, so the environment cannot be activated.",
        because="Windows' default execution policy blocks scripts",
        evidence=case.evidence("scripts-disabled"),
        fixes=(
            Fix(
                text="allow signed and local scripts for this user",
                safety="ask",
                commands=("Set-ExecutionPolicy -ExecutionPolicy RemoteSigned -Scope CurrentUser",),
                where="powershell",
                changes="this user's execution policy",
                undo="Set-ExecutionPolicy -ExecutionPolicy Undefined -Scope CurrentUser",
            ),
        ),
    )


RULE = Rule(
    check=check,
    prior=60,
    signatures=(
        signature(
            "scripts-disabled",
            "running scripts is disabled",
            "PSSecurityException",
            "about_Execution_Policies",
            pattern=r"running scripts is disabled|PSSecurityException|about_Execution_Policies",
        ),
    ),
)
