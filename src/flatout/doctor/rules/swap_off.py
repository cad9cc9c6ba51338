"""There is no swap.

**Checks.** On the machine: the swap that the kernel has, and `swap=0` in .wslconfig.

**Why it matters.** Where memory runs out, the kernel kills a process at once. With some swap the
machine becomes slow first, and there is time to see why.

**Example.** `[wsl2] swap=0`

**Fix.** Under WSL take `swap=0` out; on Linux make a swap file; asked first. A note where it is no
choice of somebody's, since servers and containers mostly run without.

**Source.** Microsoft, WSL documentation: wsl-config.md; docs.kernel.org/admin-guide/mm.
"""

from __future__ import annotations

from flatout.doctor.reading import Facts, Reading, fact
from flatout.doctor.rule import Case, Rule
from flatout.nouns.finding import Finding, Fix
from flatout.nouns.machine import Machine

_SIGNS = ("swap-set-to-none", "no-swap")


def check(case: Case) -> Finding | None:
    """There is none."""
    if not case.sees(*_SIGNS):
        return None
    return Finding(
        rule="swap-off",
        severity="warning" if case.sees("swap-set-to-none") else "note",
        problem="There is no swap: a process is killed as soon as memory runs out.",
        evidence=case.evidence(*_SIGNS),
        fixes=(
            Fix(
                text="take `swap=0` out of .wslconfig, and restart WSL",
                safety="ask",
                commands=("notepad $env:USERPROFILE\\.wslconfig", "wsl --list --running",
                          "wsl --shutdown"),
                where="powershell",
                changes="ends every distro, container and run in WSL",
                undo="put the line back",
            )
            if case.is_wsl
            else Fix(
                text="make a swap file",
                safety="ask",
                commands=("sudo fallocate -l 8G /swapfile", "sudo chmod 600 /swapfile",
                          "sudo mkswap /swapfile", "sudo swapon /swapfile"),
                where="host",
                changes="8 GiB of the disk, until the next start",
                undo="sudo swapoff /swapfile; sudo rm /swapfile",
            ),
        ),
        confirm=("swapon --show", "free -h"),
    )  # fmt: skip


def _set(machine: Machine) -> Facts:
    """Somebody switched it off, in .wslconfig."""
    config = (machine.windows.wslconfig if machine.windows else None) or {}
    is_none = config.get("wsl2.swap", "").strip().rstrip("KMGTBkmgtb ") == "0"
    return fact("[wsl2] swap=0", ".wslconfig") if machine.host.wsl == 2 and is_none else ()


def _absent(machine: Machine) -> Facts:
    """The kernel has none, and little memory that it could do without."""
    total = machine.memory.total_bytes
    if machine.memory.swap_bytes != 0 or machine.host.container or total is None:
        return ()
    return fact("SwapTotal is 0", "/proc/meminfo") if total < 64 * 2**30 else ()


RULE = Rule(
    check=check,
    prior=20,
    readings=(
        Reading(sign="swap-set-to-none", read=_set, severity="warning"),
        Reading(sign="no-swap", read=_absent, severity="note"),
    ),
)
