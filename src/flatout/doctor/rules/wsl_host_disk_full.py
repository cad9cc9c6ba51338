"""The Windows drive that holds WSL's disk is full.

**Checks.** A distro that became read-only, and Windows' messages about a full disk. On the machine:
the free space on Windows' system drive.

**Why it matters.** WSL's disk is a file (`ext4.vhdx`) that grows on a Windows drive. When that
drive is full, `df` inside WSL still shows free space, but writes fail.

**Example.** `EXT4-fs (sdc): Remounting filesystem read-only`

**Fix.** Free space on the Windows drive, then `wsl --shutdown`; by hand.

**Source.** microsoft/WSL#10194; MicrosoftDocs/WSL: disk-space.md.
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix
from flatout.schema.machine import Machine
from flatout.schema.units import bytes_text


def check(case: Case) -> Finding | None:
    """A read-only distro, or a full drive that holds the .vhdx."""
    is_read_only = case.sees("turned-read-only")
    is_full = case.sees("windows-disk-full")
    if not is_full and not (is_read_only and case.is_wsl):
        return None
    is_sure = is_full and (is_read_only or case.sees("vhdx-named") or case.is_wsl)
    return Finding(
        rule="wsl-host-disk-full",
        severity="error",
        certainty="decided" if is_sure else "likely",
        problem="The Windows drive that holds WSL's disk is full.",
        because="ext4.vhdx cannot grow, so the distro cannot write, whatever df shows",
        evidence=case.evidence("windows-disk-full", "turned-read-only", "vhdx-named"),
        fixes=(
            Fix(
                text="free space on the Windows drive, then restart WSL",
                commands=("Get-PSDrive -PSProvider FileSystem", "wsl --shutdown"),
                where="powershell",
                changes="stops every distro and container",
            ),
        ),
        confirm=("df -h / /mnt/c", "dmesg | grep -i ext4"),
    )


def _in_facts(machine: Machine) -> Facts:
    """Windows' drive is nearly full; WSL's disk is on it unless it was moved."""
    free = machine.windows.free_bytes if machine.windows else None
    if machine.host.wsl != 2 or free is None or free >= 5 * 2**30:
        return ()
    return fact(f"Windows' drive has {bytes_text(free)} free", "CIM")


RULE = Rule(
    check=check,
    fact_checks=(
        FactCheck(sign="windows-disk-full", read=_in_facts, severity="warning"),
    ),
    signatures=(
        signature(
            "turned-read-only",
            "Read-only file system",
            "filesystem read-only",
            "emergency_ro",
            "Buffer I/O error",
        ),
        signature(
            "windows-disk-full",
            "0x80070070", "not enough space on the disk", "ERROR_DISK_FULL", "WinError 112",
        ),
        signature("vhdx-named", "vhdx"),
    ),
    explains=("disk-full",),
)  # fmt: skip
