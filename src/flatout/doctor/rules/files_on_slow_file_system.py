"""The project, its data or its Python environment is on a slow file system.

**Checks.** Under WSL, folders under `/mnt/<drive>`, which are 9p shares of Windows drives. With
`flatout doctor --deep`, the measured speed of reading many small files and one large file.

**Why it matters.** Each file access on such a drive goes through Windows, so a data set of many
small files is read many times slower than on WSL's own disk, and `import torch` takes seconds.
Network file systems are slow for the same reason.

**Example.** `data on a Windows drive (9p)`

**Fix.** Copy them to WSL's own disk, under your home folder; asks first.

**Source.** Microsoft, WSL documentation: filesystems.md ("File storage and performance across file
systems"); microsoft/WSL#4197.
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact
from flatout.doctor.rule import Case, Rule
from flatout.schema.finding import Evidence, Finding, Fix
from flatout.schema.machine import Machine
from flatout.schema.units import bytes_text

# At lower speeds, a loader of small images starves a GPU: 200 images of 50 kB a second.
_SLOW_BYTES_S = 10 * 10**6
_SIGNS = ("on-windows-drive", "small-files-slow")


def check(case: Case) -> Finding | None:
    """The kind of the file system, or a measurement."""
    if not case.sees(*_SIGNS):
        return None
    is_drive = case.sees("on-windows-drive")
    return Finding(
        rule="files-on-slow-file-system",
        severity="warning",
        problem="The training reads from a slow file system.",
        because="every file access on a Windows drive goes through the WSL boundary"
        if is_drive
        else "many small files were read at the speed shown",
        evidence=case.evidence(*_SIGNS),
        fixes=(
            Fix(
                text="copy it to WSL's own disk (create a new environment there)"
                if is_drive
                else "copy the data to a disk of this machine, or store it in a few large files",
                safety="ask",
                commands=("cp -r <folder> ~/",),
                where="wsl" if is_drive else "here",
                changes="a copy; the old folder stays",
            ),
        ),
        confirm=("df -T .", "flatout doctor --deep"),
    )


def _on_drives(machine: Machine) -> Facts:
    """Folders of the training on a Windows drive."""
    if machine.host.wsl != 2:
        return ()
    disks = tuple(
        one
        for disk in machine.disks or ()
        if disk.is_windows_drive and disk.role in ("project", "data")
        for one in fact(
            f"{disk.role} on a Windows drive ({disk.kind}){_measured(disk.small_files_bytes_s)}",
            "/proc/self/mountinfo",
        )
    )
    first = next(iter(machine.environments or ()), None)
    if first is None or not first.is_on_windows_drive:
        return disks
    return (*disks, *fact("Python environment on a Windows drive", "its path"))


def _measured(speed: float | None) -> str:
    return "" if speed is None else f", {bytes_text(speed)}/s in small files"


def _measured_slow(machine: Machine) -> Facts:
    """Reading small files was slow."""
    return tuple(
        Evidence(
            text=f"{disk.role} on {disk.kind or 'its disk'}{_measured(disk.small_files_bytes_s)}",
            where="measured",
        )
        for disk in machine.disks or ()
        if disk.role in ("project", "data")
        and not disk.is_windows_drive
        and disk.small_files_bytes_s is not None
        and disk.small_files_bytes_s < _SLOW_BYTES_S
    )


RULE = Rule(
    check=check,
    prior=40,
    fact_checks=(
        FactCheck(sign="on-windows-drive", read=_on_drives, severity="warning"),
        FactCheck(sign="small-files-slow", read=_measured_slow, severity="warning"),
    ),
)
