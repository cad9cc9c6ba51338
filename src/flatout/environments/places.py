"""Where environments lie: is there room, and is it a drive of Windows seen from WSL?"""

from __future__ import annotations

from pathlib import Path

from flatout.errors import RunFailed
from flatout.nouns.machine import Machine
from flatout.nouns.prepared_environment import Prepared
from flatout.nouns.units import bytes_text
from flatout.probes.disks import Mount, is_windows_drive_mount, mount_of, parse_mountinfo
from flatout.system.made_environments import free_bytes
from flatout.system.system import LocalSystem, System, Unread
from flatout.system.wheel_store import wheels_folder

# What a step of an installer may need beyond what is reckoned with.
_SPARE_BYTES = 200_000_000


def place_notes(folder: Path, machine: Machine) -> tuple[str, ...]:
    """What a person should know of a place before anything is put there."""
    if machine.host.wsl is None:
        return ()
    mount = mount_of(_mounts(LocalSystem()), str(folder))
    if mount is None or not is_windows_drive_mount(mount):
        return ()
    return (f"{folder} lies on a drive of Windows, where many small files are slow from WSL",)


def require_room(prepared: Prepared, machine: Machine) -> None:
    """Refuses what has no room where it is to lie, or on the drive of Windows below that.

    Raises:
        RunFailed: disk-full.
    """
    wheels = wheels_folder()
    needed = {
        prepared.folder: (prepared.needed_bytes, prepared.free_bytes),
        str(wheels): (prepared.missing_bytes, free_bytes(wheels)),
    }
    # df inside tells the size that the virtual disk may grow to, not what Windows has left.
    windows = _windows_free_bytes(LocalSystem()) if machine.host.wsl is not None else None
    if windows is not None:
        needed["drive C: of Windows"] = (prepared.needed_bytes, windows)
    for place, (wanted, free) in needed.items():
        if free < wanted + _SPARE_BYTES:
            raise RunFailed(
                "disk-full",
                f"{place} has {bytes_text(free)} free, and `{prepared.name}` needs about "
                f"{bytes_text(wanted + _SPARE_BYTES)}.",
                because=f"{bytes_text(prepared.missing_bytes)} to download, the rest for what is "
                "installed",
                fix="free some, or choose another disk: --in DIR, or FLATOUT_ENVIRONMENTS and "
                "FLATOUT_CACHE",
            )


def _windows_free_bytes(system: System) -> int | None:
    """Of Windows' own drive, which holds the distro's disk unless somebody has moved it."""
    for mount in _mounts(system):
        if is_windows_drive_mount(mount) and mount.source.upper().startswith("C:"):
            space = system.space(mount.place)
            return None if isinstance(space, Unread) else space.free_bytes
    return None


def _mounts(system: System) -> list[Mount]:
    told = system.read("/proc/self/mountinfo")
    return parse_mountinfo(told) if isinstance(told, str) else []
