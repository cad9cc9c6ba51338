"""A disk is full.

**Checks.** Writes that fail for lack of space, inodes or quota, and disks at 100 % usage. On the
machine: the disks of the project, the data, the home folder and temporary files.

**Why it matters.** Wheels with CUDA take 5 GB, images 20 GB, and caches keep old versions. /tmp,
the home folder and Docker's folder are often on small disks.

**Example.** `OSError: [Errno 28] No space left on device`

**Fix.** Clear caches of pip, uv, conda, Hugging Face and Docker, or point them to a larger disk;
asks first.

**Source.** pip.pypa.io/en/stable/topics/caching/;
docs.docker.com/engine/manage-resources/pruning/; man7.org/linux/man-pages/man3/errno.3.html.
"""

from __future__ import annotations

from collections.abc import Callable

from flatout.doctor.fact_check import FactCheck, Facts, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.environment_facts import Disk
from flatout.schema.finding import Certainty, Finding, Fix
from flatout.schema.machine import Machine
from flatout.schema.units import bytes_text

_FULL = ("disk-no-space", "disk-quota", "disk-used-up")


def check(case: Case) -> Finding | None:
    """A write failed for lack of disk space, not shared memory."""
    if not case.sees(*_FULL):
        return None
    certainty: Certainty = "decided"
    if case.sees("shared-memory-named"):
        certainty = "possible"
    elif not case.sees("disk-no-space", "disk-quota"):
        certainty = "likely"
    is_error = case.sees("disk-no-space", "disk-quota")
    return Finding(
        rule="disk-full",
        severity="error" if is_error else "warning",
        certainty=certainty,
        problem="A disk is full.",
        because="the disk has run out of space, inodes or quota",
        evidence=case.evidence(*_FULL),
        fixes=(
            Fix(
                text="check which disk is full, then clear caches",
                safety="ask",
                commands=(
                    "df -h . /tmp ~ /var/lib/docker; df -i .",
                    "pip cache purge",
                    "uv cache prune",
                    "conda clean --all",
                    "docker system prune",
                ),
                changes="removes caches and images without a container",
            ),
            Fix(
                text="or keep them on a larger disk",
                safety="safe",
                commands=("export TMPDIR=<folder> PIP_CACHE_DIR=<folder> HF_HOME=<folder>",),
                changes="environment variables of this shell",
            ),
        ),
        confirm=("df -h", "df -i"),
    )


def _full(machine: Machine) -> Facts:
    """Almost no space is left."""
    return _short(machine, lambda free, num_files: free < 100 * 2**20 or num_files == 0)


def _nearly_full(machine: Machine) -> Facts:
    """Not enough space is left for a checkpoint or a CUDA package."""
    return _short(machine, lambda free, num_files: 100 * 2**20 <= free < 2 * 2**30)


def _short(machine: Machine, is_short: Callable[[int, int | None], bool]) -> Facts:
    return tuple(
        one
        for disk in machine.disks or ()
        if disk.role != "shm" and disk.free_bytes is not None and not disk.is_read_only
        and is_short(disk.free_bytes, disk.free_inodes)
        for one in fact(f"{disk.role}: {_left(disk)}", "statvfs")
    )  # fmt: skip


def _left(disk: Disk) -> str:
    left = bytes_text(disk.free_bytes or 0)
    return f"{left} free" + (", no free inodes" if disk.free_inodes == 0 else "")


RULE = Rule(
    check=check,
    prior=55,
    fact_checks=(
        FactCheck(sign="disk-no-space", read=_full),
        FactCheck(sign="disk-used-up", read=_nearly_full, severity="warning"),
    ),
    signatures=(
        signature(
            "disk-no-space",
            "No space left on device",
            "not enough space on the disk",
            "ENOSPC",
            "WinError 112",
            "NoSpaceLeftError",
            "You don't have enough free space",
            "not enough free disk space",
            "insufficient disk space",
            "file write failed",
            "Not enough disk space",
            "not enough free space",
            "unexpected pos",
            pattern=r"No space left on device|not enough (?:free )?space on the disk|ENOSPC"
            r"|WinError 112|NoSpaceLeftError|have enough free space|(?:not enough"
            r"|insufficient)(?: free)? (?:disk )?space|file write failed.{0,60}space"
            r"|unexpected pos \d+ vs \d+",
        ),
        signature(
            "disk-quota",
            "Disk quota exceeded",
            "Errno 122",
            "EDQUOT",
        ),
        signature(
            "disk-used-up",
            "/dev/",
            "overlay",
            "nvme",
            "tmpfs",
            pattern=r"^(?:/dev/(?!loop)\S{1,60}"
            r"|overlay)\s+[\d.]+[KMGT]?\s+[\d.]+[KMGT]?\s+0?\s+100%\s+/(?!snap)",
        ),
        signature(
            "shared-memory-named",
            "/dev/shm",
            "shm",
            "posix_fallocate",
            "psm_",
            "torch_shm",
            "nccl-",
            "plasma",
            "shared memory",
            pattern=r"/dev/shm|nccl-shm|posix_fallocate|psm_\w|torch_shm|plasma|shared[_ ]memory",
        ),
    ),
    explains=("dpkg-interrupted", "download-interrupted", "distributed-worker-failed"),
)
