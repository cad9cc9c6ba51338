"""There is no swap.

**Checks.** On the machine: the kernel's swap size, and `swap=0` in .wslconfig.

**Why it matters.** When memory runs out, the kernel immediately kills a process. With some swap,
the machine becomes slow first, which leaves time to react.

**Example.** `[wsl2] swap=0`

**Fix.** Under WSL, remove `swap=0`; on Linux, create a swap file; asks first. Only a note unless it
is set explicitly, since servers and containers usually run without swap.

**Source.** Microsoft, WSL documentation: wsl-config.md; docs.kernel.org/admin-guide/mm.
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact
from flatout.doctor.rule import Case, Rule
from flatout.schema.finding import Finding, Fix
from flatout.schema.machine import Machine

_SIGNS = ("swap-set-to-none", "no-swap")


def check(case: Case) -> Finding | None:
    """No swap was found."""
    if not case.sees(*_SIGNS):
        return None
    return Finding(
        rule="swap-off",
        severity="warning" if case.sees("swap-set-to-none") else "note",
        problem="There is no swap: a process is killed as soon as memory runs out.",
        evidence=case.evidence(*_SIGNS),
        fixes=(
            Fix(
                text="remove `swap=0` from .wslconfig, and restart WSL",
                safety="ask",
                commands=("notepad $env:USERPROFILE\\.wslconfig", "wsl --list --running",
                          "wsl --shutdown"),
                where="powershell",
                changes="stops every distro, container and run in WSL",
                undo="restore the line",
            )
            if case.is_wsl
            else Fix(
                text="create a swap file",
                safety="ask",
                commands=("sudo fallocate -l 8G /swapfile", "sudo chmod 600 /swapfile",
                          "sudo mkswap /swapfile", "sudo swapon /swapfile"),
                where="host",
                changes="uses 8 GiB of the disk, until the next boot",
                undo="sudo swapoff /swapfile; sudo rm /swapfile",
            ),
        ),
        confirm=("swapon --show", "free -h"),
    )  # fmt: skip


def _set(machine: Machine) -> Facts:
    """Swap is disabled in .wslconfig."""
    config = (machine.windows.wslconfig if machine.windows else None) or {}
    is_none = config.get("wsl2.swap", "").strip().rstrip("KMGTBkmgtb ") == "0"
    return fact("[wsl2] swap=0", ".wslconfig") if machine.host.wsl == 2 and is_none else ()


def _absent(machine: Machine) -> Facts:
    """The kernel has no swap, on a machine with little memory."""
    total = machine.memory.total_bytes
    if machine.memory.swap_bytes != 0 or machine.host.container or total is None:
        return ()
    return fact("SwapTotal is 0", "/proc/meminfo") if total < 64 * 2**30 else ()


RULE = Rule(
    check=check,
    prior=20,
    fact_checks=(
        FactCheck(sign="swap-set-to-none", read=_set, severity="warning"),
        FactCheck(sign="no-swap", read=_absent, severity="note"),
    ),
)
