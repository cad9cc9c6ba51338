"""A path exceeds Windows' limit of 260 characters.

**Checks.** pip's hint, and files not found deep inside site-packages.

**Why it matters.** torch and related packages have deep folders. Windows allows 260 characters
unless long paths are enabled.

**Example.** `HINT: This error might have occurred since this system does not have Windows Long
Path support enabled.`

**Fix.** Set LongPathsEnabled in the registry, as administrator, or use an environment in a short
path; asks first.

**Source.** learn.microsoft.com/windows/win32/fileio/maximum-file-path-limitation;
pip.pypa.io/warnings/enable-long-paths.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """pip's hint, and files not found deep inside site-packages."""
    if not case.sees("long-paths-off"):
        return None
    return Finding(
        rule="windows-long-paths-off",
        severity="error",
        problem="A path exceeds Windows' limit of 260 characters.",
        because="Windows allows 260 characters unless long paths are enabled",
        evidence=case.evidence("long-paths-off"),
        fixes=(
            Fix(
                text="enable long paths, as administrator",
                safety="ask",
                commands=(
                    "$key = 'HKLM:\\SYSTEM\\CurrentControlSet\\Control\\FileSystem'",
                    "Set-ItemProperty $key -Name LongPathsEnabled -Value 1",
                ),
                where="powershell",
                changes="a value in the registry",
                undo="Set-ItemProperty $key -Name LongPathsEnabled -Value 0",
            ),
            Fix(
                text="or create the environment in a short path such as `C:\\e`",
            ),
        ),
    )


RULE = Rule(
    check=check,
    prior=60,
    signatures=(
        signature(
            "long-paths-off",
            "Windows Long Path support",
            "enable-long-paths",
            "Filename too long",
            "filename or extension is too long",
            "WinError 206",
            pattern=r"Windows Long Path|enable-long-paths|(?:error|fatal"
            r"|unable to create file).{0,200}Filename too long|WinError 206",
        ),
    ),
)
