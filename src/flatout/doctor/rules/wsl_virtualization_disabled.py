"""WSL 2 does not start: virtualization is disabled.

**Checks.** Error 0x80370102 and its message from `wsl`.

**Why it matters.** WSL 2 is a virtual machine. It cannot start without virtualization in the
firmware and Windows' hypervisor.

**Example.** `WslRegisterDistribution failed with error: 0x80370102`

**Fix.** Enable virtualization in the firmware (Intel VT-x, AMD SVM), and the Windows feature; by
hand.

**Source.** MicrosoftDocs/WSL: troubleshooting.md; microsoft/WSL#8649, #5363.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """WSL's error for a missing hypervisor."""
    if not case.sees("hypervisor-missing"):
        return None
    return Finding(
        rule="wsl-virtualization-disabled",
        severity="error",
        problem="WSL 2 cannot start: virtualization is disabled.",
        because="the firmware or Windows' hypervisor does not provide it (0x80370102)",
        evidence=case.evidence("hypervisor-missing"),
        fixes=(
            Fix(
                text=(
                    "enable virtualization (VT-x, SVM) in the firmware, then, as "
                    "administrator, Windows' hypervisor, and restart"
                ),
                commands=("bcdedit /set hypervisorlaunchtype auto",),
                where="powershell",
                changes="Windows starts its hypervisor from the next boot on",
                undo="bcdedit /set hypervisorlaunchtype off",
            ),
        ),
        confirm=("systeminfo",),
    )


RULE = Rule(
    check=check,
    prior=60,
    signatures=(
        signature(
            "hypervisor-missing",
            "0x80370102",
            "HCS_E_HYPERV_NOT_INSTALLED",
            "virtualization is enabled in the BIOS",
            "hypervisorlaunchtype",
            "Virtualization Enabled In Firmware: No",
            pattern=r"0x80370102|HCS_E_HYPERV_NOT_INSTALLED|ensure virtualization is (?:turned on|"
            r"enabled)|virtualization is enabled in the BIOS|hypervisorlaunchtype\s+off|"
            r"Enabled In Firmware: No",
        ),
    ),
    explains=("wsl-feature-not-enabled", "docker-daemon-not-running"),
)
