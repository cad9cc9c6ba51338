"""A disk is failing: its controller is gone, or reads and writes fail.

**Checks.** The kernel's I/O errors for block devices and NVMe controllers, and file systems that it
remounted read-only.

**Why it matters.** Checkpoints and data are at risk, and programs fail with `Input/output error`.

**Example.** `nvme nvme0: controller is down; will reset`

**Fix.** Back up the data, then check the disk's SMART report; by hand.

**Source.** https://docs.kernel.org/admin-guide/ext4.html (errors=remount-ro); smartctl(8).
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """The kernel reports a device's errors; for WSL there is another rule."""
    if case.is_wsl or not case.sees("block-device-error", "nvme-down", "file-system-error"):
        return None
    return Finding(
        rule="storage-device-failing",
        severity="error",
        certainty="decided" if case.sees("block-device-error", "nvme-down") else "likely",
        problem="A disk is failing: reads or writes return errors.",
        evidence=case.evidence("block-device-error", "nvme-down", "file-system-error"),
        fixes=(
            Fix(
                text="copy important data to another disk, then check the disk's SMART report",
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
