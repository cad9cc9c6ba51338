"""PowerShell may not run scripts, so the environment is not activated.

**Checks.** PowerShell's refusal, by its error id.

**Why it matters.** Windows' default policy runs no script, and `Activate.ps1` is one.

**Example.** `Activate.ps1 cannot be loaded because running scripts is disabled on this system ...
PSSecurityException`

**Fix.** `Set-ExecutionPolicy -Scope CurrentUser RemoteSigned`; asked first. Or call the
environment's `python.exe` by its path.

**Source.**
learn.microsoft.com/powershell/module/microsoft.powershell.core/about/about_execution_policies;
docs.python.org/3/library/venv.html.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """PowerShell's refusal, by its error id."""
    if not case.sees("scripts-disabled"):
        return None
    return Finding(
        rule="powershell-scripts-disabled",
        severity="error",
        problem="PowerShell may not run scripts, so the environment is not activated.",
        because="Windows' default policy runs no script",
        evidence=case.evidence("scripts-disabled"),
        fixes=(
            Fix(
                text="allow signed scripts, and one's own, to this user",
                safety="ask",
                commands=("Set-ExecutionPolicy -ExecutionPolicy RemoteSigned -Scope CurrentUser",),
                where="powershell",
                changes="the policy of this user",
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
