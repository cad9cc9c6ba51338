"""Where environments lie: is there room, and is it a drive of Windows seen from WSL?"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import msgspec

from flatout.environments.existing import state_of
from flatout.errors import RunFailed
from flatout.nouns.environment_request import EnvironmentRequest
from flatout.nouns.machine import Machine
from flatout.nouns.made_environment import MadeEnvironment, Pin
from flatout.nouns.prepared_environment import Prepared, State
from flatout.nouns.units import bytes_text
from flatout.probes.disks import Mount, is_windows_drive_mount, mount_of, parse_mountinfo
from flatout.system import bundles, made_environments
from flatout.system.made_environments import free_bytes
from flatout.system.system import LocalSystem, System, Unread
from flatout.system.wheel_store import wheels_folder

# What a step of an installer may need beyond what is reckoned with.
_SPARE_BYTES = 200_000_000

_DISTROS_KEY = r"HKCU\Software\Microsoft\Windows\CurrentVersion\Lxss"
_REGISTRY_LIMIT_S = 5.0
# "    BasePath    REG_SZ    \\?\C:\Users\me\AppData\Local\wsl\{...}"
_VALUE = re.compile(r"^ +(\w+) +REG_SZ +(.*)$", re.MULTILINE)
_DRIVE = re.compile(r"(?:\\\\\?\\)?([A-Za-z]:)")


class Place(msgspec.Struct, frozen=True):
    """A name, its folder, and the environment that is there already.

    is_bundle: only wheels are to go into the folder.
    """

    name: str
    folder: Path
    there: MadeEnvironment | None
    is_bundle: bool = False

    def state(self, pins: Iterable[Pin], python_version: str, machine: Machine) -> State:
        """What is to be done here, by what was decided on."""
        return "bundle" if self.is_bundle else state_of(self.there, pins, python_version, machine)


def place_of(how: EnvironmentRequest, framework: str) -> Place:
    """Where what was asked for is to lie.

    Raises:
        UsageError: bad-environment-name, folder-not-empty, folder-not-writable.
    """
    name = made_environments.check_name(how.name or framework)
    if how.bundle:
        return Place(name, bundles.bundle_folder(how.bundle), None, is_bundle=True)
    folder = made_environments.folder_for(name, how.folder)
    return Place(name, folder, made_environments.read_environment(name))


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
    windows = _windows_drive(LocalSystem()) if machine.host.wsl is not None else None
    if windows is not None:
        # df inside tells the size that the virtual disk may grow to, not what Windows has left.
        drive, free = windows
        is_outside = bool(place_notes(Path(prepared.folder), machine))
        grows = prepared.missing_bytes if is_outside else prepared.needed_bytes
        needed[f"drive {drive} of Windows"] = (grows, free)
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


def _windows_drive(system: System) -> tuple[str, int] | None:
    """The drive with the virtual disk of this distro, and its free bytes; None where unknown."""
    mounts = [one for one in _mounts(system) if is_windows_drive_mount(one)]
    folder = next((one.place for one in mounts if one.source.upper().startswith("C:")), None)
    if folder is None:
        return None
    told = system.run(
        [f"{folder}/Windows/System32/reg.exe", "query", _DISTROS_KEY, "/s"], _REGISTRY_LIMIT_S
    )
    drive = distro_drive(told.stdout, system.environment.get("WSL_DISTRO_NAME", ""))
    mount = next((one for one in mounts if drive and one.source.upper().startswith(drive)), None)
    space = system.space(mount.place) if mount is not None else None
    if drive is None or space is None or isinstance(space, Unread):
        return None
    return drive, space.free_bytes


def distro_drive(told: str, distro: str) -> str | None:
    """The drive, like "D:", with a distro's disk, of what reg.exe says of all distros.

    Source: https://learn.microsoft.com/en-us/windows/wsl/disk-space
    """
    for entry in told.split("HKEY_CURRENT_USER")[1:]:
        values = dict(_VALUE.findall(entry))
        if values.get("DistributionName", "").strip().lower() == distro.lower():
            found = _DRIVE.match(values.get("BasePath", "").strip())
            return found[1].upper() if found else None
    return None


def _mounts(system: System) -> list[Mount]:
    told = system.read("/proc/self/mountinfo")
    return parse_mountinfo(told) if isinstance(told, str) else []
