"""`sparseVhd` is set in .wslconfig.

**Checks.** On the machine: the setting in .wslconfig.

**Why it matters.** A sparse disk returns unused space to Windows. WSL itself refuses to create one
without `--allow-unsafe`, because it has corrupted disks.

**Example.** `[experimental] sparseVhd=true`

**Fix.** Remove the line, back up important data, and restart WSL; asks first.

**Source.** microsoft/WSL#12103, #13075.
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact
from flatout.doctor.rule import Case, Rule
from flatout.schema.finding import Finding, Fix
from flatout.schema.machine import Machine


def check(case: Case) -> Finding | None:
    """The setting is on."""
    if not case.sees("sparse-disk-on"):
        return None
    return Finding(
        rule="wsl-sparse-disk-set",
        severity="warning",
        problem="WSL is set to create sparse disks, which have lost data.",
        because="WSL calls it unsafe because of data loss",
        evidence=case.evidence("sparse-disk-on"),
        fixes=(
            Fix(
                text=(
                        "remove `sparseVhd` from .wslconfig, and restart WSL; to convert an "
                        "already sparse disk back, run `wsl --manage <distro> --set-sparse "
                        "false`"
                    ),
                safety="ask",
                commands=("notepad $env:USERPROFILE\\.wslconfig", "wsl --list --running",
                          "wsl --shutdown"),
                where="powershell",
                changes="stops every distro, container and run in WSL",
                undo="restore the line",
            ),
        ),
        confirm=("powershell.exe -c 'Get-Content $env:USERPROFILE\\.wslconfig'",),
    )  # fmt: skip


def _in_facts(machine: Machine) -> Facts:
    """The setting itself."""
    config = (machine.windows.wslconfig if machine.windows else None) or {}
    if machine.host.wsl != 2 or config.get("experimental.sparsevhd", "").lower() != "true":
        return ()
    return fact("[experimental] sparseVhd=true", ".wslconfig")


RULE = Rule(
    check=check,
    prior=30,
    fact_checks=(FactCheck(sign="sparse-disk-on", read=_in_facts, severity="warning"),),
)
