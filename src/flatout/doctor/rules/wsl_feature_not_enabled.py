"""WSL or the Virtual Machine Platform is not installed in Windows.

**Checks.** The error codes of `wsl` for a missing feature or kernel.

**Why it matters.** Without these two Windows features and WSL's kernel, no distro starts as WSL 2.

**Example.** `WslRegisterDistribution failed with error: 0x8007019e`

**Fix.** `wsl --install --no-distribution` as administrator, then restart Windows; by hand.

**Source.** MicrosoftDocs/WSL: install-manual.md, troubleshooting.md.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """WSL's own messages or codes."""
    if not case.sees("wsl-feature-missing"):
        return None
    return Finding(
        rule="wsl-feature-not-enabled",
        severity="error",
        problem="A Windows feature that WSL 2 needs is not installed.",
        because="WSL, the Virtual Machine Platform or WSL's kernel is missing",
        evidence=case.evidence("wsl-feature-missing"),
        fixes=(
            Fix(
                text="install the features and the kernel as administrator, then restart Windows",
                commands=("wsl --install --no-distribution", "wsl --update"),
                where="powershell",
                changes="installs two Windows features",
                undo="turn the features off in Windows' settings",
            ),
        ),
        confirm=("wsl --status",),
    )


RULE = Rule(
    check=check,
    signatures=(
        signature(
            "wsl-feature-missing",
            "0x8007019e", "0x800701bc", "0x80370114", "0x8004032d", "0x80040154",
            "WSL_E_WSL_OPTIONAL_COMPONENT_REQUIRED", "WSL_E_VIRTUAL_MACHINE_PLATFORM_REQUIRED",
            "Virtual Machine Platform", "optional component", "requires an update to its kernel",
            "Windows Subsystem for Linux is not installed",
            pattern=r"0x8007019e|0x800701bc|0x80370114|(?:wsl|service).{0,40}0x800(?:4032d|40154)"
            r"|WSL_E_\w+_REQUIRED|Virtual Machine Platform.{0,40}(?:is not|Disabled|optional"
            r" component)|(?:enable|missing).{0,40}Virtual Machine Platform"
            r"|Windows Subsystem for Linux (?:optional component is not|is not installed)"
            r"|requires an update to its kernel",
        ),
    ),
)  # fmt: skip
