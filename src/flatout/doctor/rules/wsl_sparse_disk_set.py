"""`sparseVhd` is set in .wslconfig.

**Checks.** On the machine: the setting in .wslconfig.

**Why it matters.** A sparse disk gives unused space back to Windows. WSL itself refuses to make one
without `--allow-unsafe`, because disks were corrupted by it.

**Example.** `[experimental] sparseVhd=true`

**Fix.** Take the line out, back up what matters, and restart WSL; asked first.

**Source.** microsoft/WSL#12103, #13075.
"""

from __future__ import annotations

from flatout.doctor.reading import Facts, Reading, fact
from flatout.doctor.rule import Case, Rule
from flatout.nouns.finding import Finding, Fix
from flatout.nouns.machine import Machine


def check(case: Case) -> Finding | None:
    """The setting is on."""
    if not case.sees("sparse-disk-on"):
        return None
    return Finding(
        rule="wsl-sparse-disk-set",
        severity="warning",
        problem="WSL's disk may be made sparse, which has damaged disks.",
        because="WSL calls it unsafe since data was lost with it",
        evidence=case.evidence("sparse-disk-on"),
        fixes=(
            Fix(
                text="take `sparseVhd` out of .wslconfig, and restart WSL; a disk that is sparse "
                "already is made dense again by `wsl --manage <distro> --set-sparse false`",
                safety="ask",
                commands=("notepad $env:USERPROFILE\\.wslconfig", "wsl --list --running",
                          "wsl --shutdown"),
                where="powershell",
                changes="ends every distro, container and run in WSL",
                undo="put the line back",
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
    readings=(Reading(sign="sparse-disk-on", read=_in_facts, severity="warning"),),
)
