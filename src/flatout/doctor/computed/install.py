"""Facts, verdicts and fixes about installing packages, and the disks that they need."""

from __future__ import annotations

from collections.abc import Callable

from flatout.doctor.fact_check import Facts, fact, version
from flatout.doctor.rule import Case, RuleVerdict
from flatout.schema.environment_facts import Disk
from flatout.schema.finding import Evidence, Fix
from flatout.schema.machine import Machine
from flatout.schema.units import bytes_text, counted_text

_NVIDIA_KEYS = ("A4B469963BF863CC", "F60F4B3D7FA2AF80", "DDCAE044F796ECB0", "6ED91CA3AC1160CD")


def other_apt_key_missing(case: Case) -> RuleVerdict | None:
    """A missing key that belongs neither to NVIDIA nor to its repository."""
    others = [
        sign
        for sign in case.signs["apt-key-missing"]
        if "nvidia" not in sign.text.lower()
        and sign.values.get("key", "").upper() not in _NVIDIA_KEYS
        and sign.values.get("name", "") not in _NVIDIA_KEYS
    ]
    if not others:
        return None
    is_refused = any("is not signed" in sign.text or sign.text.startswith("E:") for sign in others)
    return RuleVerdict(
        certainty="likely",
        severity="error" if is_refused else "warning",
        evidence=tuple(Evidence(text=one.text, where=f"line {one.line}") for one in others[:2]),
    )


def nvidia_source_unsigned(machine: Machine) -> Facts:
    """NVIDIA's repository is one of apt's sources, but its current key is not installed."""
    packages = machine.packages
    if packages is None or not packages.has_nvidia_source or packages.is_nvidia_source_signed:
        return ()
    return fact("NVIDIA's repository without its own key", "/etc/apt/sources.list.d")


def packages_unfinished(machine: Machine) -> Facts:
    """dpkg lists packages that are not configured."""
    number = machine.packages.num_unfinished if machine.packages else None
    return fact(f"{counted_text(number, 'package')} not configured", "dpkg") if number else ()


def installed_by_conda_and_pip(machine: Machine) -> Facts:
    """Packages of the environment are in conda's and in pip's list, in two versions."""
    first = next(iter(machine.environments or ()), None)
    if first is None or not first.mixed:
        return ()
    return fact(f"installed by conda and by pip: {', '.join(first.mixed)}", "conda-meta, metadata")


def nvcc_differs_from_torch(machine: Machine) -> Facts:
    """nvcc and torch's CUDA differ in major version, which matters only for compiling."""
    torch = machine.framework("torch")
    first = next((one for one in machine.toolkits or () if one.is_first), None)
    if (
        torch is None
        or first is None
        or not first.version
        or not (torch.build or "").startswith("cu")
    ):
        return ()
    if str(version(first.version)[0]) == (torch.build or "")[2:4]:
        return ()
    return (
        *fact(f"nvcc of CUDA {first.version} is first on PATH", "PATH"),
        *fact(f"torch {torch.version} ({torch.build})", "metadata"),
    )


def disk_full(machine: Machine) -> Facts:
    """Less than 100 MiB of a disk are free, or no inodes."""
    return _short_disks(machine, lambda free, num_files: free < 100 * 2**20 or num_files == 0)


def disk_nearly_full(machine: Machine) -> Facts:
    """Less than 2 GiB of a disk are free, too little for a checkpoint or a CUDA package."""
    return _short_disks(machine, lambda free, num_files: 100 * 2**20 <= free < 2 * 2**30)


def _short_disks(machine: Machine, is_short: Callable[[int, int | None], bool]) -> Facts:
    return tuple(
        Evidence(text=f"{disk.role}: {_left(disk)}", where="statvfs")
        for disk in machine.disks or ()
        if disk.role != "shm"
        and disk.free_bytes is not None
        and not disk.is_read_only
        and is_short(disk.free_bytes, disk.free_inodes)
    )


def _left(disk: Disk) -> str:
    left = bytes_text(disk.free_bytes or 0)
    return f"{left} free" + (", no free inodes" if disk.free_inodes == 0 else "")


def torch_from_its_index(case: Case) -> Fix:
    """Install torch from the index of the build that was requested."""
    build = (case.value("no-matching-version", "local") or "+cu126")[1:]
    return Fix(
        text="install from the build's index",
        safety="ask",
        commands=(f"pip install torch --index-url https://download.pytorch.org/whl/{build}",),
        changes="the environment",
    )
