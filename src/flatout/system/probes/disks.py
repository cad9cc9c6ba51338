"""The file systems that a training meets: of what kind, how full, and whose."""

from __future__ import annotations

import re

import msgspec

from flatout.schema.environment_facts import Disk
from flatout.system.host_system import Completed, Space, System, Unread

# Longer than the measurement itself may take: an interpreter has to start on that disk, perhaps.
SPEED_TIMEOUT_S = 8.0

_MEASURED = ("project", "data")
_SPEEDS = ("small_files_bytes_s", "stream_bytes_s")
_SHARES = ("9p", "virtiofs", "drvfs")


class _Speed(msgspec.Struct):
    small_files_bytes_s: float
    stream_bytes_s: float


class Mount(msgspec.Struct, frozen=True):
    """A line of /proc/self/mountinfo."""

    path: str
    kind: str
    source: str
    options: str


def probe_disks(
    system: System, *, is_deep: bool = False
) -> tuple[tuple[Disk, ...], dict[str, str]]:
    """A disk for each role, and why what is None is None.

    is_deep: a small folder is written where the project and the data are, read, and removed.
    """
    mountinfo = system.read("/proc/self/mountinfo") if system.platform == "linux" else None
    mounts = parse_mountinfo(mountinfo) if isinstance(mountinfo, str) else []
    disks: list[Disk] = []
    unread: dict[str, str] = {}
    for role, path in _roles(system).items():
        space = _space(system, path)
        mount = mount_of(mounts, path)
        is_shared = mount is not None and is_windows_drive_mount(mount)
        disk = Disk(
            role=role,
            kind=mount.kind if mount else None,
            total_bytes=None if isinstance(space, Unread) else space.total_bytes,
            free_bytes=None if isinstance(space, Unread) else space.free_bytes,
            free_inodes=None if isinstance(space, Unread) else space.free_inodes,
            is_windows_drive=is_shared if mount else None,
            is_read_only=None if isinstance(space, Unread) else space.is_read_only,
            has_metadata=mount is not None and "metadata" in re.split("[,;]", mount.options)
            if is_shared else None,
        )  # fmt: skip
        path_of_disk = f"disks.{len(disks)}"
        reasons = _reasons(disk, path_of_disk, space, has_mounts=bool(mounts))
        if is_deep and role in _MEASURED:
            disk, why = with_speed(disk, _measure_speed(system, path))
            for name in _SPEEDS:
                reasons.pop(f"{path_of_disk}.{name}")
                if getattr(disk, name) is None:
                    reasons[f"{path_of_disk}.{name}"] = why
        unread |= reasons
        disks.append(disk)
    return tuple(disks), unread


def _measure_speed(system: System, path: str) -> Completed:
    folder = _nearest_folder(system, path)
    argv = [system.python, "-P", "-m", "flatout.system.file_speed", folder]
    return system.run(argv, SPEED_TIMEOUT_S)


def with_speed(disk: Disk, done: Completed) -> tuple[Disk, str]:
    """The disk with what `system/file_speed.py` printed, and why there is nothing."""
    try:
        speed = msgspec.json.decode(done.stdout, type=_Speed)
    except msgspec.DecodeError:
        reason = done.reason or done.stderr.strip()[-160:] or "it was not measured"
        return disk, f"measuring: {reason}"
    return msgspec.structs.replace(
        disk,
        small_files_bytes_s=speed.small_files_bytes_s,
        stream_bytes_s=speed.stream_bytes_s,
    ), ""


def _reasons(
    disk: Disk, path_of_disk: str, space: Space | Unread, *, has_mounts: bool
) -> dict[str, str]:
    why_no_space = space.reason if isinstance(space, Unread) else "it does not count inodes"
    why_no_kind = "no mount contains it" if has_mounts else "this system has no mountinfo"
    reasons = {
        "kind": why_no_kind,
        "is_windows_drive": why_no_kind,
        "total_bytes": why_no_space,
        "free_bytes": why_no_space,
        "free_inodes": why_no_space,
        "is_read_only": why_no_space,
        "has_metadata": "only Windows drives in WSL have it",
        **dict.fromkeys(_SPEEDS, "measured only with --deep, for the project and data folders"),
    }
    return {
        f"{path_of_disk}.{name}": why
        for name, why in reasons.items()
        if getattr(disk, name) is None
    }


def _roles(system: System) -> dict[str, str]:
    """The paths that matter, by role; those that nothing names are left out."""
    at = system.environment.get
    is_windows = system.platform == "win32"
    home = at("USERPROFILE" if is_windows else "HOME")
    data = at("FLATOUT_DATA") or (f"{home}/.local/share/flatout/data" if home else None)
    tmp = at("TEMP") if is_windows else at("TMPDIR", "/tmp")
    named = {
        "project": system.calls().folder,
        "data": at("FLATOUT_DATA") or at("LOCALAPPDATA") if is_windows else data,
        "tmp": tmp,
        "home": home,
        "shm": None if system.platform != "linux" else "/dev/shm",
    }
    return {role: path for role, path in named.items() if path}


def _space(system: System, path: str) -> Space | Unread:
    """The space of the path, or of the nearest folder above it that exists."""
    first = system.space(path)
    space = system.space(_nearest_folder(system, path))
    return first if isinstance(space, Unread) else space


def _nearest_folder(system: System, path: str) -> str:
    """The path, or the nearest folder above it that is there."""
    while isinstance(system.space(path or "/"), Unread) and path not in ("", "/"):
        path = re.sub(r"[/\\][^/\\]*$", "", path) if re.search(r"[/\\]", path) else ""
    return path or "/"


def parse_mountinfo(text: str) -> list[Mount]:
    """The mounts in /proc/self/mountinfo.

    Source: proc_pid_mountinfo(5); blanks in names are written in octal.
    """
    mounts = []
    for line in text.splitlines():
        before, separator, after = line.partition(" - ")
        left, right = before.split(" "), after.split(" ")
        if separator and len(left) > 5 and len(right) > 2:
            mounts.append(Mount(_plain(left[4]), right[0], _plain(right[1]), _plain(right[2])))
    return mounts


def _plain(text: str) -> str:
    return re.sub(r"\\([0-3][0-7]{2})", lambda escape: chr(int(escape[1], 8)), text)


def mount_of(mounts: list[Mount], path: str) -> Mount | None:
    containing = [
        mount for mount in mounts
        if path == mount.path or path.startswith(mount.path.rstrip("/") + "/")
    ]  # fmt: skip
    # Of two at one place the later hides the earlier.
    return max(enumerate(containing), key=lambda pair: (len(pair[1].path), pair[0]))[1] \
        if containing else None  # fmt: skip


def is_windows_drive_mount(mount: Mount) -> bool:
    is_drive = re.match(r"[A-Za-z]:", mount.source) is not None
    return mount.kind in _SHARES and (is_drive or "drvfs" in mount.options)
