"""Locations of environments: is there enough space, and is it a Windows drive seen from WSL?"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import msgspec

from flatout.errors import RunFailed
from flatout.schema.environment import MadeEnvironment, Pin
from flatout.schema.machine import Machine
from flatout.schema.units import bytes_text
from flatout.setup.env.existing import state_of
from flatout.setup.model.environment_plan import EnvironmentPlan, State
from flatout.setup.model.environment_request import EnvironmentRequest
from flatout.setup.packages import bundles
from flatout.setup.packages.wheel_store import wheels_folder
from flatout.system.host_system import LocalSystem, System, Unread
from flatout.system.probes.disks import Mount, is_windows_drive_mount, mount_of, parse_mountinfo
from flatout.system.store import environments
from flatout.system.store.environments import free_bytes

# What an installer may need on top of the estimate.
_SPARE_BYTES = 200_000_000

_DISTROS_KEY = r"HKCU\Software\Microsoft\Windows\CurrentVersion\Lxss"
_REGISTRY_LIMIT_S = 5.0
# "    BasePath    REG_SZ    \\?\C:\Users\me\AppData\Local\wsl\{...}"
_VALUE = re.compile(r"^ +(\w+) +REG_SZ +(.*)$", re.MULTILINE)
_DRIVE = re.compile(r"(?:\\\\\?\\)?([A-Za-z]:)")


class EnvLocation(msgspec.Struct, frozen=True):
    """A name, its folder, and the environment that exists there.

    is_bundle: the folder is for wheels only.
    """

    name: str
    folder: Path
    there: MadeEnvironment | None
    is_bundle: bool = False

    def state(self, pins: Iterable[Pin], python_version: str, machine: Machine) -> State:
        """The work to be done here, given the resolved packages."""
        return "bundle" if self.is_bundle else state_of(self.there, pins, python_version, machine)


def location_for(how: EnvironmentRequest, framework: str) -> EnvLocation:
    """The location of the requested environment.

    Raises:
        UsageError: bad-environment-name, folder-not-empty, folder-not-writable.
    """
    name = environments.check_name(how.name or framework)
    if how.bundle:
        return EnvLocation(name, bundles.bundle_folder(how.bundle), None, is_bundle=True)
    folder = environments.folder_for(name, how.folder)
    return EnvLocation(name, folder, environments.read_environment(name))


def location_notes(folder: Path, machine: Machine) -> tuple[str, ...]:
    """Notes for the user about a folder before it is used."""
    if machine.host.wsl is None:
        return ()
    mount = mount_of(_mounts(LocalSystem()), str(folder))
    if mount is None or not is_windows_drive_mount(mount):
        return ()
    return (f"{folder} is on a Windows drive, where WSL is slow with many small files",)


def require_room(prepared: EnvironmentPlan, machine: Machine) -> None:
    """Refuses a plan that does not fit on its disk, or on the Windows drive beneath it.

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
        # df in WSL reports how far the virtual disk may grow, not the free space of Windows.
        drive, free = windows
        is_outside = bool(location_notes(Path(prepared.folder), machine))
        grows = prepared.missing_bytes if is_outside else prepared.needed_bytes
        needed[f"Windows drive {drive}"] = (grows, free)
    for volume, (needed_bytes, free) in needed.items():
        if free < needed_bytes + _SPARE_BYTES:
            raise RunFailed(
                "disk-full",
                f"{volume} has {bytes_text(free)} free, and `{prepared.name}` needs about "
                f"{bytes_text(needed_bytes + _SPARE_BYTES)}.",
                because=f"{bytes_text(prepared.missing_bytes)} to download, the rest for installed "
                "files",
                fix="free some space, or choose another disk: --in DIR, or "
                "FLATOUT_ENVIRONMENTS and FLATOUT_CACHE",
            )


def _windows_drive(system: System) -> tuple[str, int] | None:
    """The drive with the virtual disk of this distro, and its free bytes; None where unknown."""
    mounts = [mount for mount in _mounts(system) if is_windows_drive_mount(mount)]
    folder = next((mount.path for mount in mounts if mount.source.upper().startswith("C:")), None)
    if folder is None:
        return None
    output = system.run(
        [f"{folder}/Windows/System32/reg.exe", "query", _DISTROS_KEY, "/s"], _REGISTRY_LIMIT_S
    )
    drive = distro_drive(output.stdout, system.environment.get("WSL_DISTRO_NAME", ""))
    mount = next(
        (mount for mount in mounts if drive and mount.source.upper().startswith(drive)), None
    )
    space = system.space(mount.path) if mount is not None else None
    if drive is None or space is None or isinstance(space, Unread):
        return None
    return drive, space.free_bytes


def distro_drive(output: str, distro: str) -> str | None:
    """The drive, like "D:", with a distro's disk, from reg.exe's output about all distros.

    Source: https://learn.microsoft.com/en-us/windows/wsl/disk-space
    """
    for entry in output.split("HKEY_CURRENT_USER")[1:]:
        values = dict(_VALUE.findall(entry))
        if values.get("DistributionName", "").strip().lower() == distro.lower():
            match = _DRIVE.match(values.get("BasePath", "").strip())
            return match[1].upper() if match else None
    return None


def _mounts(system: System) -> list[Mount]:
    output = system.read("/proc/self/mountinfo")
    return parse_mountinfo(output) if isinstance(output, str) else []
