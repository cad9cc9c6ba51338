"""A disk fails: its controller is gone, or reads and writes end in errors.

**Checks.** The kernel's I/O errors of block devices and NVMe controllers, and file systems that it
switched to read-only.

**Why it matters.** Checkpoints and data are at risk, and programs end in `Input/output error`.

**Example.** `nvme nvme0: controller is down; will reset`

**Fix.** Save what can be saved, then look at the disk's own report; by hand.

**Source.** https://docs.kernel.org/admin-guide/ext4.html (errors=remount-ro); smartctl(8).
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """The kernel reports a device's errors; under WSL another rule knows them."""
    if case.is_wsl or not case.sees("block-device-error", "nvme-down", "file-system-error"):
        return None
    return Finding(
        rule="storage-device-failing",
        severity="error",
        certainty="decided" if case.sees("block-device-error", "nvme-down") else "likely",
        problem="A disk fails: reads or writes end in errors.",
        evidence=case.evidence("block-device-error", "nvme-down", "file-system-error"),
        fixes=(
            Fix(
                text="copy what matters to another disk, then read the disk's own report",
                commands=("sudo smartctl -a /dev/nvme0",),
                where="host",
            ),
        ),
        confirm=(
            "sudo dmesg | grep -iE 'I/O error|nvme|EXT4-fs error'",
            "sudo smartctl -a /dev/sda",
        ),
    )


RULE = Rule(
    check=check,
    signatures=(
        signature(
            "block-device-error",
            "I/O error",
            "Medium Error",
            "Unrecovered read error",
            pattern=r"(?:critical medium|I/O) error, dev (?!loop|sr\d|fd\d)\w+"
            r"|Buffer I/O error on dev(?:ice)? (?!sr\d|fd\d|loop)\w+|Sense Key : Medium Error"
            r"|Unrecovered read error",
        ),
        signature(
            "nvme-down",
            "controller is down",
            "Disabling device after reset failure",
            "Device not ready; aborting reset",
            pattern=r"nvme.{0,60}(?:controller is down|Disabling device|aborting reset)",
        ),
        signature(
            "file-system-error",
            "EXT4-fs error",
            "Remounting filesystem read-only",
            "XFS",
            "BTRFS",
            pattern=r"EXT4-fs error|Remounting filesystem read-only|XFS \(\S{1,40}\): (?:Corruption"
            r"|metadata I/O error)|BTRFS (?:error|critical)",
        ),
    ),
)
