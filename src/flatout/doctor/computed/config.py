"""Facts about settings, and where the files of a training are."""

from __future__ import annotations

from flatout.doctor.fact_check import Facts, fact
from flatout.schema.finding import Evidence
from flatout.schema.machine import Machine
from flatout.schema.plan import Block, Edit, Entry
from flatout.schema.units import bytes_text, counted_text

# At lower speeds, a loader of small images starves a GPU: 200 images of 50 kB a second.
_SLOW_BYTES_S = 10 * 10**6


def visible_index_without_gpu(machine: Machine) -> Facts:
    """CUDA_VISIBLE_DEVICES contains an index without a GPU."""
    text = (machine.variables or {}).get("CUDA_VISIBLE_DEVICES", "")
    indices = [int(part) for part in text.split(",") if part.strip().isdigit()]
    if not machine.gpus or all(index < len(machine.gpus) for index in indices):
        return ()
    return (
        *fact(f"CUDA_VISIBLE_DEVICES={text}", "environment"),
        *fact(counted_text(len(machine.gpus), "GPU"), "NVML"),
    )


def visible_devices_hide_all(machine: Machine) -> Facts:
    """CUDA_VISIBLE_DEVICES is set and hides every GPU."""
    text = (machine.variables or {}).get("CUDA_VISIBLE_DEVICES")
    if not machine.gpus or text is None or text.strip() not in ("", "-1"):
        return ()
    return fact(f"CUDA_VISIBLE_DEVICES={text}", "environment")


def files_on_windows_drive(machine: Machine) -> Facts:
    """Under WSL, the project, its data or its environment is on a Windows drive."""
    if machine.host.wsl != 2:
        return ()
    disks = tuple(
        Evidence(
            text=f"{disk.role} on a Windows drive ({disk.kind})"
            f"{_measured(disk.small_files_bytes_s)}",
            where="/proc/self/mountinfo",
        )
        for disk in machine.disks or ()
        if disk.is_windows_drive and disk.role in ("project", "data")
    )
    first = next(iter(machine.environments or ()), None)
    if first is None or not first.is_on_windows_drive:
        return disks
    return (*disks, *fact("Python environment on a Windows drive", "its path"))


def small_files_slow(machine: Machine) -> Facts:
    """Small files were read at less than 10 MB/s."""
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


def _measured(speed: float | None) -> str:
    return "" if speed is None else f", {bytes_text(speed)}/s in small files"


def persistence_off(machine: Machine) -> Facts:
    """On native Linux, persistence is off on cards that drive no display."""
    if (
        machine.module is None
        or machine.host.container
        or any(gpu.has_display is not False for gpu in machine.gpus)
    ):
        return ()
    found = [gpu for gpu in machine.gpus if gpu.is_persistence_on is False]
    return fact(f"GPU {found[0].index}: persistence is off", "NVML") if found else ()


def gpu_switched_off_in_wsl(machine: Machine) -> Facts:
    """/etc/wsl.conf or .wslconfig disables the GPU."""
    if machine.host.wsl != 2:
        return ()
    conf = (machine.wsl.wsl_conf if machine.wsl else None) or {}
    config = (machine.windows.wslconfig if machine.windows else None) or {}
    if conf.get("gpu.enabled", "").lower() == "false":
        return fact("[gpu] enabled=false", "/etc/wsl.conf")
    if config.get("wsl2.gpusupport", "").lower() == "false":
        return fact("[wsl2] gpuSupport=false", ".wslconfig")
    return ()


def without_gpu_switch(_: Machine) -> tuple[Edit | Block, ...]:
    """The setting is taken out, which TOML, having no null, cannot say."""
    switch = Entry(place=("gpu", "enabled"), value=None)
    return (Edit(file="/etc/wsl.conf", form="ini", entries=(switch,)),)
